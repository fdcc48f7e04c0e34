"""This program's own Python, for commands inside a sandbox."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple


class HostPython(NamedTuple):
    """A Python interpreter of the host without its installed packages.

    Attributes:
        executable: its path; start it with ``-I -S`` so that nothing in the sandbox's folder is imported unasked.
        read_only: what ``SandboxSpec.read_only`` must name for it.
    """

    executable: str
    read_only: tuple[str, ...]


def host_python() -> HostPython:
    """The interpreter that runs this program, outside its virtual environment."""
    executable = os.path.realpath(sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    return HostPython(executable, () if f"{prefix}/".startswith("/usr/") else (prefix,))
