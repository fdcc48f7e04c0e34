"""What the kernel counts for a user: one sandbox cannot use up what another has."""

import asyncio
import os

import pytest

from k2jax.agents.sandbox.exhaustion import COUNTED, exhausted
from tests.agents.sandbox.backends import NAMESPACES, PYTHON, SPEC, backend, in_sandbox, python
from tests.agents.sandbox.other_user import run_as_another_user

pytestmark = pytest.mark.usefixtures("witness")


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("name", NAMESPACES, indirect=True)
def test_a_sandbox_that_takes_all_leaves_the_others_theirs(name, kind):
    assert asyncio.run(exhausted(kind, backend(name), SPEC, PYTHON.executable)) == ""


USABLE = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
parent, child = os.openpty()
os.write(parent, b'typed\\n')
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
queued = [libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) for _ in range(100)]
print(os.read(child, 99), os.ttyname(child), os.isatty(child), set(queued), libc.inotify_init() >= 0)
"""


@pytest.mark.parametrize("name", NAMESPACES, indirect=True)
def test_a_program_has_terminals_signals_and_inotify(name):
    async def use(sandbox):
        return await sandbox.exec(python(USABLE))

    assert in_sandbox(name, use).stdout == b"b'typed\\n' /dev/pts/0 True {0} True\n"


OTHER = """
import asyncio
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.exhaustion import COUNTED, exhausted
async def main():
    backend = BubblewrapBackend()
    for kind in COUNTED: print([await exhausted(kind, backend, SandboxSpec(), "/usr/bin/python3")])
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="needs the system's Python")
def test_it_holds_for_sandboxes_of_an_ordinary_user():
    assert run_as_another_user(OTHER) == "['']\n" * len(COUNTED)
