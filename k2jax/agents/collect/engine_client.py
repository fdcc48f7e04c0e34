"""The client of an engine in another process, over a Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import itertools
from pathlib import Path

from k2jax.agents.collect.engine_messages import (
    EngineLoad,
    EngineSaid,
    RequestFault,
    pack_request,
    unpack_completion,
    unpack_error,
)
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import NUMBER
from k2jax.client import Completion, OnToken, PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError, UserError


class EngineLostError(InfrastructureError):
    """The engine's process is gone, or it failed."""


_ERRORS = {
    RequestFault.ENGINE: EngineLostError,
    RequestFault.REQUEST: UserError,
    RequestFault.TOO_LONG: PromptTooLongError,
}


class EngineSocketClient:
    """Generates with the engine behind a socket, see ``k2jax.agents.collect.engine_server``; it connects when it is used.

    Args:
        path: of the socket.
        patience: time for the engine to be there [s].

    Attributes:
        load: what the engine last said of itself; None before it has.
    """

    def __init__(self, path: str | Path, patience: float = 120.0):
        self._path, self._patience = str(path), patience
        self._connection: FrameConnection | None = None
        self._connecting: asyncio.Lock | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self.load: EngineLoad | None = None
        self.on_load: Callable[[EngineLoad], None] = lambda load: None

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``.

        Raises:
            EngineLostError: the engine cannot be reached, or ends before its answer.
            UserError: the engine refuses the request, or ``on_token`` is given: tokens come all at once.
        """
        if on_token is not None:
            raise UserError("an engine behind a socket does not report single tokens; leave on_token out")
        connection = await self.connect()
        number = next(self._numbers)
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        connection.send(EngineSaid.REQUEST, pack_request(number, prompt, sampling, resume))
        try:
            return await done
        except asyncio.CancelledError:
            connection.send(EngineSaid.CANCEL, NUMBER.pack(number))
            raise
        finally:
            self._waiting.pop(number, None)

    async def connect(self) -> FrameConnection:
        """The connection, which is made where there is none.

        Raises:
            EngineLostError: nobody listens there.
        """
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._connection is None:
                self._connection = await self._connected()
        return self._connection

    async def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> FrameConnection:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            connection = FrameConnection(self._on_frame, self._on_end)
            with contextlib.suppress(OSError):
                await loop.create_unix_connection(lambda made=connection: made, self._path)
                return connection
            if loop.time() > deadline:
                raise EngineLostError(f"no engine listens on {self._path}")
            await asyncio.sleep(0.1)

    def _on_frame(self, kind: int, body: bytes) -> None:
        if kind == EngineSaid.COMPLETION:
            number, completion = unpack_completion(body)
            self._settle(number, completion, None)
        elif kind == EngineSaid.ERROR:
            number, fault, text = unpack_error(body)
            self._settle(number, None, _ERRORS[fault](text))
        elif kind == EngineSaid.PRESSURE:
            self.load = EngineLoad.unpack(body)
            self.on_load(self.load)

    def _settle(self, number: int, completion: Completion | None, error: Exception | None) -> None:
        done = self._waiting.get(number)
        if done is None or done.done():  # cancelled meanwhile
            return
        if error is None:
            done.set_result(completion)
        else:
            done.set_exception(error)

    def _on_end(self) -> None:
        self._connection = None
        for number in list(self._waiting):
            self._settle(number, None, EngineLostError("the engine's process has ended"))
