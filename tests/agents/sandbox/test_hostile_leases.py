"""A program that takes leases on its files: whoever reads them from outside would wait for it, 45 s for each."""

import asyncio
import time

import pytest

from k2jax.agents.sandbox import SandboxError, folder
from tests.agents.sandbox.backends import NAMESPACES, in_sandbox, python

HOLD = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = []
for n in range(8):
    with open(f'/work/{n}', 'w') as file: file.write('x')
    held.append(os.open(f'/work/{n}', os.O_RDWR))
    if n % 2 == 0: fcntl.fcntl(held[n], fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.mkdir('/work/ready')
time.sleep(600)
"""

pytestmark = pytest.mark.usefixtures("witness")


async def longest_pause(seconds, until):
    """The longest time that the event loop took over a sleep of some milliseconds, until a task is done [s]."""
    longest = 0.0
    while not until.done():
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        longest = max(longest, time.monotonic() - begun - seconds)
    return longest


async def holder(sandbox):
    """Starts the program, and returns when it has its leases."""
    await sandbox.start(python(HOLD))
    for _ in range(1000):
        if "ready" in await sandbox.list("/work"):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the program has no leases")


@pytest.mark.parametrize("name", NAMESPACES, indirect=True)
def test_a_file_under_a_lease_is_refused_at_once_and_may_be_replaced(name):
    async def attack(sandbox):
        refused = []
        for n in range(8):
            try:
                assert await sandbox.read(str(n)) == b"x"
            except SandboxError as error:
                assert "lease" in str(error)
                refused.append(n)
        assert refused == [0, 2, 4, 6]
        await sandbox.write("0", b"own")
        assert await sandbox.read("0") == b"own"

    async def use(sandbox):
        await holder(sandbox)
        begun, task = time.monotonic(), asyncio.create_task(attack(sandbox))
        pause = await longest_pause(0.005, task)
        await task
        return pause, time.monotonic() - begun

    pause, seconds = in_sandbox(name, use)
    assert pause < 5 and seconds < 10  # a lease is 45 s


@pytest.mark.parametrize("name", ["bubblewrap", "unsafe"], indirect=True)
def test_what_the_kernel_does_not_answer_costs_its_time_limit_and_the_loop_nothing(name, monkeypatch):
    """A file system that stands still: the read goes on in its thread, and nobody waits for it."""
    monkeypatch.setattr(folder, "FILE_SECONDS", 0.2)
    monkeypatch.setattr(folder.files, "read_file", lambda *_: time.sleep(1))

    async def use(sandbox):
        task = asyncio.create_task(sandbox.read("x"))
        pause = await longest_pause(0.005, task)
        with pytest.raises(SandboxError, match=r"0\.2 s"):
            await task
        return pause

    assert in_sandbox(name, use) < 0.15
