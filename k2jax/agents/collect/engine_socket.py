"""An engine in another process, over a socket: its client for workers, and the server beside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import itertools
from pathlib import Path
import socket
import struct
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_address import LARGEST_GREETING, EngineAddress, greeting, shows_key
from k2jax.agents.collect.token_reports import ReportedTokens, TokenReport
from k2jax.agents.collect.wire import VERSION, FrameConnection, other_version, version_of
from k2jax.agents.collect.wire_messages import (
    NUMBER,
    EngineLoad,
    EngineMessage,
    RequestFault,
    SentImage,
    pack_completion,
    pack_error,
    pack_request,
    pack_score,
    pack_tokens,
    unpack_completion,
    unpack_error,
    unpack_request,
    unpack_score,
    unpack_tokens,
)
from k2jax.client import Client, Completion, OnToken, PromptTooLongError, Sampling, check_scored
from k2jax.errors import InfrastructureError, UserError


class EngineLostError(InfrastructureError):
    """The engine's process is gone, or it failed."""


GREETING_SECONDS = 30.0
"""Time that a server gives a connection until it has to show what it is [s]."""
_LONGEST = struct.Struct("<QQ")  # number, longest sequence
_ERRORS = {
    RequestFault.ENGINE: EngineLostError,
    RequestFault.REQUEST: UserError,
    RequestFault.TOO_LONG: PromptTooLongError,
}


class EngineSocketClient(Client):
    """Generates with the engine behind a socket (``k2jax.agents.collect.engine_socket``); it connects when it is used.

    Args:
        address: of the engine, see ``EngineAddress``.
        patience: time for the engine to be there [s].

    Attributes:
        load: what the engine last said of itself; None before it has.
    """

    def __init__(self, address: str | Path, patience: float = 120.0):
        self._address, self._patience = EngineAddress.parse(address), patience
        self._greeted: asyncio.Future[None] | None = None
        self._connection: FrameConnection | None = None
        self._connecting: asyncio.Lock | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reported: dict[int, ReportedTokens] = {}
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
            UserError: the engine refuses the request.
        """
        if on_token is None:
            request = lambda number: pack_request(number, prompt, sampling, resume, media)  # noqa: E731
            return await self._ask(EngineMessage.REQUEST, request)
        reported, numbers = ReportedTokens(on_token, 0 if resume is None else len(resume.tokens)), []

        def reporting(number: int) -> bytes:
            self._reported[number] = reported
            numbers.append(number)
            return pack_request(number, prompt, sampling, resume, media, reports=True)

        try:
            return reported.cut(len(prompt), await self._ask(EngineMessage.REQUEST, reporting))
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

    async def connect(self) -> FrameConnection:
        """The connection, which is made where there is none.

        Raises:
            EngineLostError: nobody listens there, or whoever does wants another key.
            UserError: it speaks another version of the wire.
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
            connection, self._greeted = FrameConnection(self._on_frame, self._on_end), loop.create_future()
            with contextlib.suppress(OSError):
                await self._address.connect(connection)
                break
            if loop.time() > deadline:
                raise EngineLostError(f"no engine listens on {self._address}")
            await asyncio.sleep(0.1)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + GREETING_SECONDS)):
                await self._greeted
        except BaseException as error:  # also a cancellation: a connection that nobody uses would outlive the next one
            connection.abort()
            if isinstance(error, TimeoutError):
                raise EngineLostError(f"the engine on {self._address} does not answer") from None
            raise
        return connection

    def _on_hello(self, version: int) -> None:
        if self._greeted.done():
            return
        if version == VERSION:
            self._greeted.set_result(None)
        else:
            self._greeted.set_exception(UserError(other_version(f"the engine on {self._address}", version)))

    def _on_frame(self, kind: int, body: bytes) -> None:
        if kind == EngineMessage.HELLO:
            self._on_hello(version_of(body))
        elif kind == EngineMessage.COMPLETION:
            number, completion = unpack_completion(body)
            self._settle(number, completion, None)
        elif kind == EngineMessage.SCORES:
            scores = np.frombuffer(body, "<f4", offset=NUMBER.size)
            self._settle(*NUMBER.unpack_from(body), scores, None)
        elif kind == EngineMessage.TOKENS:
            number, tokens, logprobs = unpack_tokens(body)
            reported = self._reported.get(number)
            if reported is not None and reported.add(tokens, logprobs):
                self._connection.send(EngineMessage.END, NUMBER.pack(number))
        elif kind == EngineMessage.LONGEST:
            self._settle(*_LONGEST.unpack(body), None)
        elif kind == EngineMessage.ERROR:
            number, fault, text = unpack_error(body)
            self._settle(number, None, _ERRORS[fault](text))
        elif kind == EngineMessage.PRESSURE:
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
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(EngineLostError(f"what listens on {self._address} does not take this worker"))
        for number in list(self._waiting):
            self._settle(number, None, EngineLostError("the engine's process has ended"))


class EngineServer:
    """Serves a client to other processes.

    Args:
        client: generates.
        load: says how busy the engine is; it is told to every connection each ``interval``.
        interval: between two such messages [s].
        media: makes of a sent image what the client takes; None for a client of text alone.
        key: that every connection has to show, see ``EngineAddress``; empty on a Unix socket.
    """

    def __init__(
        self,
        client: Client,
        load: Callable[[], EngineLoad] | None = None,
        interval: float = 0.5,
        media: Callable[[SentImage], Any] | None = None,
        key: str = "",
    ):
        self._client, self._load, self._interval = client, load, interval
        self._media, self._key = media, key
        self._connections: set[_Served] = set()

    async def serve(self, place: str | Path | socket.socket, ready: Callable[[], None] = lambda: None) -> None:
        """Listens until it is cancelled, on a Unix socket of this path or on a socket that listens already."""
        loop = asyncio.get_running_loop()
        if isinstance(place, socket.socket):
            server = await loop.create_server(self._connected, sock=place)
        else:
            server = await loop.create_unix_server(self._connected, str(place), backlog=512)
        ready()
        async with server:
            while True:
                await asyncio.sleep(self._interval)
                if self._load is not None:
                    load = self._load().pack()
                    for served in self._connections:
                        served.connection.send(EngineMessage.PRESSURE, load)

    def _connected(self) -> FrameConnection:
        return _Served(self, self._key).connection

    def admit(self, served: _Served) -> None:
        """A connection has shown that it is a worker's."""
        self._connections.add(served)

    async def answer(self, kind: int, body: bytes, reporting: Callable[[], TokenReport]) -> tuple[EngineMessage, bytes]:
        """The frame that answers a request; ``reporting`` sends what comes before it."""
        if kind == EngineMessage.LONGEST:
            (number,) = NUMBER.unpack(body)
            return EngineMessage.LONGEST, _LONGEST.pack(number, await self._client.longest_sequence() or 0)
        if kind == EngineMessage.SCORE:
            asked = unpack_score(body)
            scores = await self._client.score(asked.ids.tolist(), asked.start, self._placed(asked.images))
            return EngineMessage.SCORES, NUMBER.pack(asked.number) + np.ascontiguousarray(scores, "<f4").tobytes()
        request = unpack_request(body)
        del body  # tens of thousands of requests wait here
        options = {"resume": request.resume, "media": self._placed(request.images)}
        report = reporting() if request.reports else None
        if report is not None:
            options["on_token"] = report.on_token
        completion = await self._client.generate(request.prompt.tolist(), request.sampling, **options)
        if report is not None:
            report.flush()  # what it still holds comes before the completion
        return EngineMessage.COMPLETION, pack_completion(request.number, completion)

    def _placed(self, images: Sequence[SentImage]) -> tuple[Any, ...]:
        if images and self._media is None:
            raise UserError("the engine reads text alone, and a prompt has images; collect with a model that sees")
        return tuple(map(self._media, images)) if images else ()

    def forget(self, served: _Served) -> None:
        """A connection has ended."""
        self._connections.discard(served)


class _Served:
    """One connection: its requests are coroutines, which end with it.

    Until it has shown the key it may send a greeting and nothing else, in a short time.
    """

    def __init__(self, server: EngineServer, key: str):
        self._server, self._key = server, key
        self._is_admitted = self._is_refused = False
        self._running: dict[int, asyncio.Task[None]] = {}
        self._reports: dict[int, TokenReport] = {}
        self.connection = FrameConnection(self._on_frame, self._on_end, largest=LARGEST_GREETING)
        self._timer = asyncio.get_running_loop().call_later(GREETING_SECONDS, self.connection.abort)

    def _on_frame(self, kind: int, body: bytes) -> None:
        if self._is_admitted:
            self._on_request(kind, body)
        elif not self._is_refused:
            self._on_greeting(kind, body)

    def _on_greeting(self, kind: int, body: bytes) -> None:
        self._timer.cancel()
        self._is_refused = kind != EngineMessage.HELLO or not shows_key(body, self._key)
        if self._is_refused:
            self.connection.abort()
            return
        self.connection.send(EngineMessage.HELLO, greeting())  # by which another version knows what is wrong
        self._is_refused = version_of(body) != VERSION
        if self._is_refused:
            self.connection.close()
            return
        self._is_admitted = True
        self.connection.trust()
        self._server.admit(self)

    def _on_request(self, kind: int, body: bytes) -> None:
        (number,) = NUMBER.unpack_from(body)
        if kind in (EngineMessage.REQUEST, EngineMessage.SCORE, EngineMessage.LONGEST):
            answering = asyncio.ensure_future(self._answer(number, kind, body))
            self._running[number] = answering
            answering.add_done_callback(lambda _: self._forget(number))
        elif kind == EngineMessage.END and number in self._reports:
            self._reports[number].is_ended = True
        elif kind == EngineMessage.CANCEL and number in self._running:
            self._running[number].cancel()

    async def _answer(self, number: int, kind: int, body: bytes) -> None:
        def reporting() -> TokenReport:
            send = lambda *tokens: self.connection.send(EngineMessage.TOKENS, pack_tokens(number, *tokens))  # noqa: E731
            self._reports[number] = TokenReport(send)
            return self._reports[number]

        try:
            self.connection.send(*await self._server.answer(kind, body, reporting))
        except (UserError, InfrastructureError, RuntimeError) as error:
            self.connection.send(EngineMessage.ERROR, pack_error(number, error))

    def _forget(self, number: int) -> None:
        del self._running[number]
        self._reports.pop(number, None)

    def _on_end(self) -> None:
        self._timer.cancel()
        self._server.forget(self)
        for answering in list(self._running.values()):
            answering.cancel()
