"""The client of an engine in another process, over a Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_messages import (
    EngineLoad,
    EngineSaid,
    RequestFault,
    pack_request,
    pack_score,
    unpack_completion,
    unpack_error,
)
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import NUMBER
from k2jax.client import Client, Completion, OnToken, PromptTooLongError, Sampling, check_scored
from k2jax.errors import InfrastructureError, UserError


class EngineLostError(InfrastructureError):
    """The engine's process is gone, or it failed."""


_ERRORS = {
    RequestFault.ENGINE: EngineLostError,
    RequestFault.REQUEST: UserError,
    RequestFault.TOO_LONG: PromptTooLongError,
}


class EngineSocketClient(Client):
    """Generates with the engine behind a socket (``k2jax.agents.collect.engine_server``); it connects when it is used.

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
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.load: EngineLoad | None = None
        self.on_load: Callable[[EngineLoad], None] = lambda load: None

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``.

        Raises:
            EngineLostError: the engine cannot be reached, or ends before its answer.
            UserError: the engine refuses the request, or ``on_token`` is given: tokens come all at once.
        """
        if on_token is not None:
            raise UserError("an engine behind a socket does not report single tokens; leave on_token out")
        request = lambda number: pack_request(number, prompt, sampling, resume, media)  # noqa: E731
        return await self._ask(EngineSaid.REQUEST, request)

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities of given tokens; see ``Client.score``, and ``generate`` for its errors."""
        check_scored(ids, start)
        return await self._ask(EngineSaid.SCORE, lambda number: pack_score(number, ids, start, media))

    async def _ask(self, kind: EngineSaid, request: Callable[[int], bytes]) -> Any:
        """The answer to a request, which is made of its number."""
        connection = await self.connect()
        number = next(self._numbers)
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        connection.send(kind, request(number))
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
        elif kind == EngineSaid.SCORES:
            scores = np.frombuffer(body, "<f4", offset=NUMBER.size)
            self._settle(*NUMBER.unpack_from(body), scores, None)
        elif kind == EngineSaid.ERROR:
            number, fault, text = unpack_error(body)
            self._settle(number, None, _ERRORS[fault](text))
        elif kind == EngineSaid.PRESSURE:
            self.load = EngineLoad.unpack(body)
            self.on_load(self.load)

    def _settle(self, number: int, answer: Any, error: Exception | None) -> None:
        done = self._waiting.get(number)
        if done is None or done.done():  # cancelled meanwhile
            return
        if error is None:
            done.set_result(answer)
        else:
            done.set_exception(error)

    def _on_end(self) -> None:
        self._connection = None
        for number in list(self._waiting):
            self._settle(number, None, EngineLostError("the engine's process has ended"))
