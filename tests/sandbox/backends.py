"""Running coroutines on a sandbox of each backend, and what must be true of the machine afterwards."""

import asyncio
import os
from pathlib import Path

import pytest

from k2jax.sandbox import SandboxSpec
from k2jax.sandbox.backends import BACKENDS, make_backend
from k2jax.sandbox.interpreter import host_python

PYTHON = host_python()
SPEC = SandboxSpec(read_only=PYTHON.read_only)
SLOW = tuple(pytest.param(name, marks=pytest.mark.slow) for name in ("nsjail", "nsjail without groups"))
NAMESPACES = ("bubblewrap", "bubblewrap without groups", *SLOW)
"""Backends of this machine's own namespaces."""
ISOLATED = NAMESPACES
"""Backends that promise to hold programs that mean harm."""
ALL = (*ISOLATED, "unsafe")

_made = {}


def backend(name):
    """The backend of a name, one for all tests of a process."""
    if name not in _made:
        kind, _, without = name.partition(" without ")
        _made[name] = BACKENDS[kind](groups=False) if without else make_backend(kind)
    return _made[name]


def in_sandbox(name, use, spec=SPEC):
    """Opens a sandbox, gives it to the coroutine function ``use``, closes it; returns what ``use`` returns."""

    async def run():
        async with await backend(name).open(spec) as sandbox:
            return await use(sandbox)

    return asyncio.run(run())


def python(code, *arguments):
    """A command that runs Python code inside."""
    return [PYTHON.executable, "-I", "-S", "-c", code, *arguments]


def processes_below(pid):
    """Pids of all processes that descend from one, zombies included."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, front = set(), {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front} - found
        found |= front
    return found


def survivors(name):
    """Processes that a backend has left behind: all below its spawner."""
    link = getattr(backend(name), "_link", None)
    return processes_below(link._process.pid) if link is not None else set()


def own_descriptors():
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
