"""A program of the user as a process of which nothing is left behind, whatever it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import contextlib
import json
import os
import socket
import sys
import time
from typing import Any, NamedTuple

from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.gateway.agent_episode import KEPT_OUTPUT
from k2jax.agents.harness.keeper import GRACE
from k2jax.files.child_environment import child_environment

_KEEPER = "k2jax.agents.harness.keeper"
_CHUNK = 1 << 16
_FLUSHING = 1.0  # time for the last output behind the keeper's end [s]
_ENDING = 4 * GRACE  # time of the keeper for its end; it is killed after it [s]


class ProgramEnd(NamedTuple):
    """How a program ended.

    Attributes:
        code: its exit code; negative for the signal that ended it.
        seconds: from its start [s].
        output: the end of what it has written, output and errors together.
    """

    code: int
    seconds: float
    output: str


async def run_program(argv: Sequence[str], environment: Mapping[str, str]) -> ProgramEnd:
    """Runs a program in this process's working directory; it ends with this coroutine, also where that is cancelled.

    Args:
        argv: the program and its arguments.
        environment: all of its variables.

    Raises:
        EnvironmentFailedError: it cannot be started.
    """
    began = time.monotonic()
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            keeper = await _start_keeper(theirs)
        except OSError as error:
            ours.close()
            raise EnvironmentFailedError(f"no process can be started for {argv[0]}: {error.strerror}") from None
    reader, writer = await asyncio.open_connection(sock=ours)
    assert keeper.stdout is not None
    output = _Tail()
    reading = asyncio.ensure_future(output.read(keeper.stdout))
    told: dict[str, Any] = {}
    try:
        request = {"argv": list(argv), "env": dict(environment), "cwd": os.getcwd()}
        writer.write(json.dumps(request).encode() + b"\n")
        told = json.loads(await reader.readline() or b"{}")
    except OSError:  # the keeper has died before it has read
        pass
    finally:
        writer.close()
        await asyncio.shield(_ended(keeper, reading))
    if "code" not in told:
        reason = told.get("error") or f"the process that keeps it has died: {output.text()[-200:]!a}"
        raise EnvironmentFailedError(f"the program {argv[0]} was not run to its end: {reason}")
    return ProgramEnd(told["code"], time.monotonic() - began, output.text())


async def _start_keeper(connection: socket.socket) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _KEEPER, str(connection.fileno())),
        pass_fds=[connection.fileno()],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=child_environment() | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        start_new_session=True,
    )


class _Tail:
    """The end of what a stream brings."""

    def __init__(self) -> None:
        self._kept = b""

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Reads to the end of the stream."""
        while data := await stream.read(_CHUNK):
            self._kept = (self._kept + data)[-4 * KEPT_OUTPUT :]

    def text(self) -> str:
        """What has come so far."""
        return self._kept.decode(errors="replace")[-KEPT_OUTPUT:]


async def _ended(keeper: asyncio.subprocess.Process, reading: asyncio.Future[None]) -> None:
    """Waits for the end of a keeper whose socket is closed, and for its output, which others may hold open."""
    try:
        async with asyncio.timeout(_ENDING):
            await keeper.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            keeper.kill()
        await keeper.wait()
    await asyncio.wait([reading], timeout=_FLUSHING)
    reading.cancel()
