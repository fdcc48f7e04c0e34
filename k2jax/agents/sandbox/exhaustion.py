"""Whether one sandbox can use up what the kernel counts for a user, so that another beside it has none."""

from __future__ import annotations

import asyncio

from k2jax.agents.sandbox.types import Limits, Sandbox, SandboxBackend, SandboxError, SandboxSpec

COUNTED = {
    "inotify instances": "libc.inotify_init() >= 0",
    "queued signals": "libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0",
    "timers": "libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0",
    "message queues": "libc.mq_open(b'/%d-%d' % (os.getpid(), taken), os.O_CREAT | os.O_RDWR, 0o600, None) >= 0",
    "pseudo-terminals": "os.openpty()",
}
"""What takes one more of each, in Python; false or an OSError where there is no more."""
_PROGRAM = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, {{40}})
def take():
    taken = 0
    try:
        while taken < 200_000 and ({step}): taken += 1
    except OSError: pass
    return taken
total, more = take(), 1
while more and len(sys.argv) > 1:
    reading, writing = os.pipe()
    try:
        if os.fork() == 0:
            os.write(writing, str(take()).encode())
            time.sleep(600)
    except OSError: break
    os.close(writing)
    more = int(os.read(reading, 20) or 0)
    os.close(reading)
    total += more
open('taken', 'w').close()
while len(sys.argv) > 1 and not os.path.exists('enough'): time.sleep(0.02)
print(total)
"""
"""Takes all that there is, with an argument in as many processes as it needs, and then holds it."""
_SECONDS = 60.0


async def exhausted(kind: str, backend: SandboxBackend, spec: SandboxSpec, python: str) -> str:
    """Has one sandbox take all that it can, and looks what a second one gets meanwhile.

    Args:
        kind: of ``COUNTED``.
        backend: of both.
        spec: what they show.
        python: the interpreter inside.

    Returns:
        How the second one got less than it gets alone; empty where it did not.

    Raises:
        SandboxError: a sandbox failed.
    """
    spec = SandboxSpec(read_only=spec.read_only, limits=Limits())
    command = [python, "-I", "-S", "-c", _PROGRAM.format(step=COUNTED[kind])]
    async with await backend.open(spec) as first, await backend.open(spec) as second:
        alone = await _count(second, command)
        holding = asyncio.create_task(_count(first, [*command, "hold"]))
        try:
            while "taken" not in await first.list("/work") and not holding.done():
                await asyncio.sleep(0.02)
            beside = await _count(second, command)
            await first.write("enough", b"")
            await holding
        finally:
            holding.cancel()
    return "" if beside >= alone else f"a sandbox beside one that takes all gets {beside:,} instead of {alone:,}"


async def _count(sandbox: Sandbox, command: list[str]) -> int:
    result = await sandbox.exec(command, timeout=_SECONDS)
    if result.code:
        raise SandboxError(f"a program that counts ended with code {result.code}: {result.stderr[-200:]!a}")
    return int(result.stdout)
