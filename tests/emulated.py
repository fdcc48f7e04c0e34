"""Programs of their own for the tests, with emulated devices, which are made at a program's start."""

import os
from pathlib import Path
import subprocess
import sys

ROOT = Path(__file__).parents[1]


def run_on(devices: int, *arguments: str, timeout: int | None = None) -> str:
    """Output of ``python ARGUMENTS`` in the repository with so many emulated devices; fails where the program does."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
