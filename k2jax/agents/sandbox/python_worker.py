"""Tool workers: Python processes that stay in a sandbox and answer calls, thousands a second, without new processes.

What a worker answers was written by code that nobody trusts: sizes are bounded before anything is read, and an answer
that is none ends the worker. It says nothing about the sandbox, which goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
import contextlib
import dataclasses
from pathlib import Path
import time
from typing import Any

from k2jax.agents.sandbox import python_program as worker_program
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.namespaces import NamespaceSandbox
from k2jax.agents.sandbox.process import SandboxProcess
from k2jax.agents.sandbox.types import MEBI, ExecResult, SandboxError
from k2jax.agents.sandbox.wire import Message, encode
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.frames import Bounds, FrameDecoder, FrameError

_PROGRAM = Path(worker_program.__file__).read_text(encoding="utf-8")
_MOST_RECORD, _MOST_REASON = MEBI, 300
_MOST_VALUES = 50_000  # of a record, which is parsed on the event loop


@dataclasses.dataclass(frozen=True)
class ToolAnswer:
    """What a call gave.

    Attributes:
        value: what the function returned, as JSON has it; None for code.
        output: what was written to the standard outputs, at most ``output_limit`` bytes.
        error: end of the traceback, or why there is no answer; None for success.
        seconds: wall time.
        timed_out: the worker was ended at the time limit.
        ended: the worker has ended and with it everything that it held; the next call starts another.
        truncated: output beyond the limit was dropped.
    """

    value: Any
    output: bytes
    error: str | None
    seconds: float
    _: dataclasses.KW_ONLY
    timed_out: bool = False
    ended: bool = False
    truncated: bool = False


class ToolWorker:
    """A Python process in a sandbox with functions and names that last from call to call; one call at a time.

    It starts with the first call, and again with the call after it has ended. The sandbox's ``close`` ends it too.

    Args:
        sandbox: where it runs.
        source: Python code that it runs first; its functions can be called.
        python: the interpreter inside; None for this program's own, which the sandbox's spec must show.
        start_timeout: time that starting and ``source`` may take [s].
    """

    def __init__(
        self, sandbox: NamespaceSandbox, source: str = "", *, python: str | None = None, start_timeout: float = 30.0
    ):
        self._sandbox, self._source, self._start_timeout = sandbox, source, start_timeout
        self._python = python or host_python().executable
        self._process: SandboxProcess | None = None
        self._channel: _Channel | None = None
        self._lock = asyncio.Lock()

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, timeout: float = 10.0, output_limit: int = 1 << 16
    ) -> ToolAnswer:
        """Calls a function of the worker.

        Args:
            name: of the function.
            arguments: by name, as JSON has them.
            timeout: wall time from when the worker begins [s].
            output_limit: bytes of output that are kept.

        Raises:
            SandboxError: the sandbox failed, or ``source`` cannot be run.
        """
        return await self._ask({"call": name, "arguments": dict(arguments), "limit": output_limit}, timeout)

    async def run(self, code: str, *, timeout: float = 10.0, output_limit: int = 1 << 16) -> ToolAnswer:
        """Runs code as a cell of a notebook; see ``call``."""
        return await self._ask({"run": code, "define": False, "limit": output_limit}, timeout)

    async def start(self) -> None:
        """Starts the process now rather than with the first call; see ``call`` for errors."""
        async with self._lock:
            await self._started()

    async def close(self) -> None:
        """Ends the process; the next call starts another."""
        async with self._lock:
            await self._end()

    async def _ask(self, record: dict[str, Any], timeout: float) -> ToolAnswer:
        async with self._lock:
            channel = await self._started()
            return await self._exchange(channel, record, timeout)

    async def _started(self) -> _Channel:
        if self._channel is not None and not self._channel.ended:
            return self._channel
        await self._end()
        self._process = await self._sandbox.start([self._python, "-I", "-S", "-c", _PROGRAM])
        _, self._channel = await asyncio.get_running_loop().create_connection(_Channel, sock=self._process.take())
        if self._source:
            first = await self._exchange(
                self._channel, {"run": self._source, "define": True, "limit": 0}, self._start_timeout
            )
            if first.error is not None:
                await self._end()
                raise SandboxError(f"a worker's source cannot be run: {first.error}")
        return self._channel

    async def _exchange(self, channel: _Channel, record: dict[str, Any], timeout: float) -> ToolAnswer:
        begun = time.monotonic()
        try:
            answer = await channel.exchange(record, timeout)
        except BaseException as error:
            # Whatever the reason, the next answer would be one to this request.
            end = await self._end()
            if not isinstance(error, TimeoutError | ConnectionError | ValueError | RecursionError):
                raise
            late = isinstance(error, TimeoutError)
            reason = f"no answer within {timeout:g} s" if late else str(error) or "the worker ended"
            if end is not None and not late:
                reason += (
                    " for memory" if end.out_of_memory else f": {end.stderr[-_MOST_REASON:].decode(errors='replace')}"
                )
            return ToolAnswer(None, b"", reason, time.monotonic() - begun, timed_out=late, ended=True)
        told, error = answer.record["answer"], answer.record["answer"].get("error")
        return ToolAnswer(
            value=told.get("value"),
            output=answer.payload,
            error=None if error is None else str(error),
            seconds=time.monotonic() - begun,
            truncated=bool(answer.record.get("cut")),
        )

    async def _end(self) -> ExecResult | None:
        """Ends the process; gives how it ended, where there was one and the sandbox can tell."""
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None:
            channel.close()
        if process is not None:
            await asyncio.shield(process.kill())
            with contextlib.suppress(SandboxError):
                return await process.wait()
        return None


class _Channel(asyncio.Protocol):
    """The connection to one worker: one request, then its answer."""

    def __init__(self):
        self.ended = False
        self._frames = FrameDecoder(Bounds(_MOST_RECORD, 0))
        self._waiting: asyncio.Future[Message] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    async def exchange(self, record: dict[str, Any], timeout: float) -> Message:
        """The answer; TimeoutError, ConnectionError and ValueError where there is none."""
        if self.ended:
            raise ConnectionError("the worker ended")
        loop = asyncio.get_running_loop()
        self._waiting, self._frames.bounds = loop.create_future(), Bounds(_MOST_RECORD, record["limit"])
        self._transport.write(encode(Message(record)))
        timer = loop.call_later(timeout, self._fail, TimeoutError())
        try:
            return await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            self._fail(ValueError("the worker wrote without being asked"))
            self.close()
            return
        try:
            frames = self._frames.feed(data)
        except FrameError:
            self._fail(ValueError("the worker's answer is too long"))
            self.close()
            return
        if not frames:
            return
        try:
            record = parse_bounded_json(frames[0][0], _MOST_VALUES)
            is_answer = isinstance(record, dict) and isinstance(record.get("answer"), dict)
            if not is_answer or len(frames) > 1 or self._frames.waiting:
                raise ValueError("the worker's answer is none")
        except ValueError as error:
            self._fail(error)
            return
        if not self._waiting.done():
            self._waiting.set_result(Message(record, frames[0][1]))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._fail(ConnectionError("the worker ended"))

    def close(self) -> None:
        """Ends the connection."""
        self.ended = True
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
