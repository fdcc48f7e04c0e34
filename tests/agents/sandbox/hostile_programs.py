"""What the tests of hostile programs share: running an attack, and what must be true of the machine after it."""

import dataclasses
from pathlib import Path
import time

import pytest

from k2jax.agents.sandbox import Limits
from tests.agents.sandbox.backends import NAMESPACES, SPEC, in_sandbox, python, survivors

every_backend = pytest.mark.parametrize("name", NAMESPACES, indirect=True)
MEBI = 1 << 20
SMALL = dataclasses.replace(SPEC, limits=Limits(memory=96 * MEBI, processes=24, disk=4 * MEBI, files=200))
LIBC = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)\n"


def attack(name, code, *arguments, spec=SPEC, timeout=5.0, **options):
    """Runs hostile Python code, sees that nothing of it is left and that the next command works; gives its result."""

    async def use(sandbox):
        begun = time.monotonic()
        result = await sandbox.exec(python(code, *arguments), timeout=timeout, **options)
        assert time.monotonic() - begun < timeout + 1.5
        assert not survivors(name)
        after = await sandbox.exec(["/bin/echo", "alive"])
        assert (after.code, after.stdout) == (0, b"alive\n"), after
        return result

    return in_sandbox(name, use, spec)


def said(result):
    """What a program printed that ended well."""
    assert result.code == 0, result
    return result.stdout.decode()


def command_of(pid):
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
