"""Starts the trainer as several processes of this machine, one emulated device each."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import socket
import subprocess
import sys
import time

from k2jax.report.metrics import read_metrics

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def python(arguments: list[str], index: int, count: int, port: int, **environment: str) -> subprocess.Popen:
    """One process of ``count``; what it prints is read through pipes."""
    several = {
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(index),
    }
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"} | several | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env=env, cwd=ROOT, **pipes)


def trainers(folder: Path, workdir: Path, count: int, *more: str) -> list[subprocess.Popen]:
    """The trainer of ``folder``'s config in ``count`` processes."""
    port = free_port()
    arguments = ["-m", "k2jax.train", f"--config={folder}/config.py", f"--workdir={workdir}", *more]
    return [python(arguments, index, count, port) for index in range(count)]


def end(processes: list[subprocess.Popen], seconds: float = 200) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each; kills those that do not end in time."""
    deadline = time.monotonic() + seconds
    try:
        told = [process.communicate(timeout=max(1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, told, strict=True)]


def wait_for_step(workdir: Path, step: int, processes: list[subprocess.Popen]) -> None:
    """Returns when ``step`` is in the metrics."""
    deadline = time.monotonic() + 200
    while not any(record["step"] >= step for record in read_metrics(workdir)):
        assert all(process.poll() is None for process in processes), end(processes)
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.02)


def marked(mark: str) -> list[str]:
    """Processes with a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found
