"""An engine in another process, over a socket: its client for workers, and the server beside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import contextlib
from pathlib import Path
import socket
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_address import LARGEST_GREETING, EngineAddress, greeting, shows_key
from k2jax.agents.collect.engine_requests import LONGEST, EngineLostError, EngineRequests
from k2jax.agents.collect.token_reports import TokenReport
from k2jax.agents.collect.wire import VERSION, FrameConnection, other_version, version_of
from k2jax.agents.collect.wire_messages import (
    NUMBER,
    EngineLoad,
    EngineMessage,
    SentImage,
    pack_completion,
    pack_error,
    pack_tokens,
    unpack_request,
    unpack_score,
)
from k2jax.client import UNKNOWN_VERSION, Client
from k2jax.errors import InfrastructureError, UserError

__all__ = ["EngineLostError", "EngineServer", "EngineSocketClient"]

GREETING_SECONDS = 30.0
"""Time that a server gives a connection until it has to show what it is [s]."""


class EngineSocketClient(EngineRequests):
    """Generates with the engine behind a socket (``k2jax.agents.collect.engine_socket``); it connects when it is used.

    Args:
        address: of the engine, see ``EngineAddress``.
        patience: time for the engine to be there [s].
    """

    def __init__(self, address: str | Path, patience: float = 120.0):
        super().__init__()
        self._address, self._patience = EngineAddress.parse(address), patience
        self._greeted: asyncio.Future[None] | None = None
        self._connection: FrameConnection | None = None
        self._connecting: asyncio.Lock | None = None

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
        else:
            self.answered(self._connection, kind, body)

    def _on_end(self) -> None:
        self._connection = None
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(EngineLostError(f"what listens on {self._address} does not take this worker"))
        self.lost("the engine's process has ended")


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
        self._connections: set[FrameConnection] = set()

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
                    for connection in self._connections:
                        connection.send(EngineMessage.PRESSURE, load)

    def _connected(self) -> FrameConnection:
        answers = EngineAnswers(self._client, self._media)

        def admitted() -> None:
            answers.connection = accepted.connection
            self._connections.add(accepted.connection)

        def ended() -> None:
            self._connections.discard(accepted.connection)
            answers.cancel()

        accepted = AcceptedConnection(self._key, admitted, answers.on_frame, ended)
        return accepted.connection


class AcceptedConnection:
    """A connection that another process has opened.

    Until it has shown the key it may send a greeting and nothing else, in a short time.

    Args:
        key: that it has to show, see ``EngineAddress``; empty on a Unix socket.
        on_admitted: called when it has.
        on_frame: called with the kind and the bytes of every frame behind the greeting.
        on_end: called once when the connection has ended.
        on_other_version: called with the version of the wire that another k2jax speaks, whose connection ends.

    Attributes:
        connection: the connection.
    """

    def __init__(
        self,
        key: str,
        on_admitted: Callable[[], None],
        on_frame: Callable[[int, bytes], None],
        on_end: Callable[[], None],
        on_other_version: Callable[[int], None] = lambda version: None,
    ):
        self._key, self._on_admitted, self._on_behind, self._on_ended = key, on_admitted, on_frame, on_end
        self._on_other_version = on_other_version
        self._is_admitted = self._is_refused = False
        self.connection = FrameConnection(self._on_frame, self._on_end, largest=LARGEST_GREETING)
        self._timer = asyncio.get_running_loop().call_later(GREETING_SECONDS, self.connection.abort)

    def _on_frame(self, kind: int, body: bytes) -> None:
        if self._is_admitted:
            self._on_behind(kind, body)
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
            self._on_other_version(version_of(body))
            self.connection.close()
            return
        self._is_admitted = True
        self.connection.trust()
        self._on_admitted()

    def _on_end(self) -> None:
        self._timer.cancel()
        self._on_ended()


class EngineAnswers:
    """Answers the requests that come over a connection: each is a coroutine, which ends with it.

    Args:
        client: generates.
        media: see ``EngineServer``.
        version: returns the version of the weights that choose a token, on the thread that reports it.

    Attributes:
        connection: over which answers leave; set before the first request.
    """

    def __init__(
        self,
        client: Client,
        media: Callable[[SentImage], Any] | None = None,
        version: Callable[[], int] = lambda: UNKNOWN_VERSION,
    ):
        self._client, self._media, self._version = client, media, version
        self._running: dict[int, asyncio.Task[None]] = {}
        self._reports: dict[int, TokenReport] = {}
        self.connection: FrameConnection | None = None

    def on_frame(self, kind: int, body: bytes) -> None:
        """Takes a frame of whoever asks."""
        (number,) = NUMBER.unpack_from(body)
        if kind in (EngineMessage.REQUEST, EngineMessage.SCORE, EngineMessage.LONGEST):
            answering = asyncio.ensure_future(self._answer(number, kind, body))
            self._running[number] = answering
            answering.add_done_callback(lambda _: self._forget(number))
        elif kind == EngineMessage.END and number in self._reports:
            self._reports[number].is_ended = True
        elif kind == EngineMessage.CANCEL and number in self._running:
            self._running[number].cancel()

    def cancel(self) -> None:
        """Ends all requests, whose connection has ended."""
        for answering in list(self._running.values()):
            answering.cancel()

    async def _answer(self, number: int, kind: int, body: bytes) -> None:
        try:
            self.connection.send(*await self._answer_to(kind, body))
        except (UserError, InfrastructureError, RuntimeError) as error:
            self.connection.send(EngineMessage.ERROR, pack_error(number, error))

    async def _answer_to(self, kind: int, body: bytes) -> tuple[EngineMessage, bytes]:
        """The frame that answers a request."""
        if kind == EngineMessage.LONGEST:
            (number,) = NUMBER.unpack(body)
            return EngineMessage.LONGEST, LONGEST.pack(number, await self._client.longest_sequence() or 0)
        if kind == EngineMessage.SCORE:
            asked = unpack_score(body)
            scores = await self._client.score(asked.ids.tolist(), asked.start, self._placed(asked.images))
            return EngineMessage.SCORES, NUMBER.pack(asked.number) + np.ascontiguousarray(scores, "<f4").tobytes()
        request = unpack_request(body)
        del body  # tens of thousands of requests wait here
        options = {"resume": request.resume, "media": self._placed(request.images)}
        report = self._report(request.number) if request.reports else None
        if report is not None:
            options["on_token"] = report.on_token
        completion = await self._client.generate(request.prompt.tolist(), request.sampling, **options)
        if report is not None:
            report.flush()  # what it still holds comes before the completion
        return EngineMessage.COMPLETION, pack_completion(request.number, completion)

    def _report(self, number: int) -> TokenReport:
        send = lambda *tokens: self.connection.send(EngineMessage.TOKENS, pack_tokens(number, *tokens))  # noqa: E731
        report = self._reports[number] = TokenReport(send, self._version)
        return report

    def _placed(self, images: Sequence[SentImage]) -> tuple[Any, ...]:
        if images and self._media is None:
            raise UserError("the engine reads text alone, and a prompt has images; collect with a model that sees")
        return tuple(map(self._media, images)) if images else ()

    def _forget(self, number: int) -> None:
        del self._running[number]
        self._reports.pop(number, None)
