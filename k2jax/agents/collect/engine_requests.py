"""Requests to an engine in another process over one connection, whoever has opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import itertools
import struct
from typing import Any

import numpy as np

from k2jax.agents.collect.token_reports import ReportedTokens
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import (
    NUMBER,
    EngineLoad,
    EngineMessage,
    RequestFault,
    pack_request,
    pack_score,
    unpack_completion,
    unpack_error,
    unpack_tokens,
)
from k2jax.client import Client, Completion, OnToken, PromptTooLongError, Sampling, check_scored
from k2jax.errors import InfrastructureError, UserError


class EngineLostError(InfrastructureError):
    """The engine's process is gone, or it failed.

    Args:
        message: what became of it.
        reported: the tokens that the request had reported until then, which another engine may go on behind; None where
            it reported none.
    """

    def __init__(self, message: str, reported: Completion | None = None):
        super().__init__(message)
        self.reported = reported


LONGEST = struct.Struct("<QQ")
"""Number of a request, and the longest sequence [tokens]."""
_ERRORS = {
    RequestFault.ENGINE: EngineLostError,
    RequestFault.REQUEST: UserError,
    RequestFault.TOO_LONG: PromptTooLongError,
}


class EngineRequests(Client):
    """Asks the engine at the other end of a connection, and hands answers to whoever waits for them.

    Attributes:
        load: what the engine last said of itself; None before it has.
        on_load: is told each time.
    """

    def __init__(self):
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reported: dict[int, ReportedTokens] = {}
        self.load: EngineLoad | None = None
        self.on_load: Callable[[EngineLoad], None] = lambda load: None

    @property
    def under_way(self) -> int:
        """Requests that wait for their answers."""
        return len(self._waiting)

    async def connect(self) -> FrameConnection:
        """The connection.

        Raises:
            EngineLostError: there is none.
        """
        raise NotImplementedError

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
            UserError: the engine refuses the request.
        """
        if on_token is None:
            request = lambda number: pack_request(number, prompt, sampling, resume, media)  # noqa: E731
            return await self._ask(EngineMessage.REQUEST, request)
        reported, numbers = ReportedTokens(on_token, resume), []

        def reporting(number: int) -> bytes:
            self._reported[number] = reported
            numbers.append(number)
            return pack_request(number, prompt, sampling, resume, media, reports=True)

        try:
            return reported.cut(len(prompt), await self._ask(EngineMessage.REQUEST, reporting))
        except EngineLostError as error:
            raise EngineLostError(str(error), reported.completion()) from error
        finally:
            for number in numbers:
                del self._reported[number]

    async def longest_sequence(self) -> int | None:
        """See ``Client.longest_sequence``, and ``generate`` for its errors."""
        return await self._ask(EngineMessage.LONGEST, NUMBER.pack) or None

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities of given tokens; see ``Client.score``, and ``generate`` for its errors."""
        check_scored(ids, start)
        return await self._ask(EngineMessage.SCORE, lambda number: pack_score(number, ids, start, media))

    def answered(self, connection: FrameConnection, kind: int, body: bytes) -> None:
        """Takes a frame of the engine."""
        if kind == EngineMessage.COMPLETION:
            number, completion = unpack_completion(body)
            self._settle(number, completion, None)
        elif kind == EngineMessage.SCORES:
            scores = np.frombuffer(body, "<f4", offset=NUMBER.size)
            self._settle(*NUMBER.unpack_from(body), scores, None)
        elif kind == EngineMessage.TOKENS:
            number, *tokens = unpack_tokens(body)
            reported = self._reported.get(number)
            if reported is not None and reported.add(*tokens):
                connection.send(EngineMessage.END, NUMBER.pack(number))
        elif kind == EngineMessage.LONGEST:
            self._settle(*LONGEST.unpack(body), None)
        elif kind == EngineMessage.ERROR:
            number, fault, text = unpack_error(body)
            self._settle(number, None, _ERRORS[fault](text))
        elif kind == EngineMessage.PRESSURE:
            self.load = EngineLoad.unpack(body)
            self.on_load(self.load)

    def lost(self, message: str) -> None:
        """The connection has ended: no request gets an answer."""
        for number in list(self._waiting):
            self._settle(number, None, EngineLostError(message))

    async def _ask(self, kind: EngineMessage, request: Callable[[int], bytes]) -> Any:
        """The answer to a request, which is made of its number."""
        connection = await self.connect()
        number = next(self._numbers)
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            connection.send(kind, request(number))
        except ValueError as error:  # of images alone, which no sequence of tokens is as long as
            del self._waiting[number]
            raise PromptTooLongError(f"the images of a prompt are more than can be sent: {error}") from None
        try:
            return await done
        except asyncio.CancelledError:
            connection.send(EngineMessage.CANCEL, NUMBER.pack(number))
            raise
        finally:
            self._waiting.pop(number, None)

    def _settle(self, number: int, answer: Any, error: Exception | None) -> None:
        done = self._waiting.get(number)
        if done is None or done.done():  # cancelled meanwhile
            return
        if error is None:
            done.set_result(answer)
        else:
            done.set_exception(error)
