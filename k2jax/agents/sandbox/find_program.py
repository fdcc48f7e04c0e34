"""Where the programs that isolate are: the system's, or those of a wheel."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import shutil
import subprocess

from k2jax.errors import UserError


def find_program(kind: str, name: str, wheel: tuple[str, str], option: str, install: str) -> tuple[str, str, str]:
    """Where an isolating program is.

    Args:
        kind: what it is called.
        name: of its file.
        wheel: module of the wheel that holds it, and its path there.
        option: with which it is tried.
        install: how it is installed.

    Returns:
        Its path, the folder that it is relative to (that of installed packages for the wheel, empty for the system's),
        and what it prints.

    Raises:
        UserError: there is none.
    """
    spec = importlib.util.find_spec(wheel[0])
    path, folder = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"), ""
    if spec is not None and spec.origin:
        package = Path(spec.origin).parent
        if (package / wheel[1]).is_file():
            path, folder = f"{package.name}/{wheel[1]}", str(package.parent)
    if path is None:
        raise UserError(f"no {kind} on this machine; {install}")
    run = subprocess.run([os.path.join(folder, path), option], capture_output=True, text=True)
    return path, folder, run.stdout + run.stderr
