"""Request bodies on their way into memory: how many bytes of them there are at a time, per sender and in all.

There is room for a body before its first byte is read, and until what reads it is done. Long bodies share the room of
the longest, so that they come one after the other; short ones have room of their own, and never wait for long ones. A
body for which there is no room for a while is refused, and its sender told to try again. Bodies are parsed and read in
threads, few at a time, so that the event loop serves others meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
import contextlib
from typing import Any, NoReturn

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.encoding import parse_json

BODY_OF_TEXT, BODY_WITH_IMAGES = 8 << 20, 32 << 20
"""Longest bodies, unless a server is told otherwise: for models of text, and for those that read images [bytes]."""
BODY_SECONDS = 60.0
"""The longest time in which a client may send a request body [s]."""
ROOM_SECONDS = 30.0
"""The longest time that a body waits for room [s]."""
READERS = 4
"""Bodies that are read at a time; each may have images, of which a reader may hold 600 MB that nobody has counted."""
MAX_REQUESTS = 128
"""Requests of one sender that arrive or are read at a time."""
SHORT_BODY = 1 << 20
"""Bytes of a body that does not wait for longer ones."""
_SHORT_BODIES, _SHORT_BODIES_OF_ONE = 24 * SHORT_BODY, 4 * SHORT_BODY


class SharedRoom:
    """A number of bytes that several share, each with a limit of its own; whoever finds no room waits."""

    def __init__(self, total: int, each: int):
        self._total, self._each = total, each
        self._held: Counter[Hashable] = Counter()
        self._changed = asyncio.Condition()

    async def take(self, owner: Hashable, size: int) -> None:
        """Waits until there is room.

        Raises:
            ApiError: 429, there is none within ``ROOM_SECONDS``.
        """
        try:
            async with asyncio.timeout(ROOM_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._fits(owner, size))
                self._held[owner] += size
        except TimeoutError:
            raise busy("too many request bodies are arriving") from None

    async def give(self, owner: Hashable, size: int) -> None:
        """Gives back what ``take`` took."""
        async with self._changed:
            self._held[owner] -= size
            if not self._held[owner]:
                del self._held[owner]
            self._changed.notify_all()

    def _fits(self, owner: Hashable, size: int) -> bool:
        return self._held.total() + size <= self._total and self._held[owner] + size <= self._each


class Arrivals:
    """The requests of a server whose bodies are not yet read.

    Args:
        max_body_bytes: longest body; a longer one is rejected.
    """

    def __init__(self, max_body_bytes: int):
        self.max_body_bytes = max_body_bytes
        self.readers = asyncio.Semaphore(READERS)
        self._long = SharedRoom(max_body_bytes, max_body_bytes)
        self._short = SharedRoom(_SHORT_BODIES, _SHORT_BODIES_OF_ONE)
        self._requests: Counter[Hashable] = Counter()

    @contextlib.asynccontextmanager
    async def of(self, request: Request, sender: Hashable) -> AsyncIterator[Arrival]:
        """Receives the body of a request, for which there is room until the end of the block.

        Args:
            request: whose body nobody has read.
            sender: who shares a limit, such as a rollout.

        Raises:
            ApiError: 415 if the content type is not JSON, 413 if the body is too long, 408 if it arrives too slowly,
                429 if the sender has too many requests or there is no room for the body.
        """
        size = self._announced(request)
        if self._requests[sender] >= MAX_REQUESTS:
            raise busy(f"more than {MAX_REQUESTS} requests at a time")
        room = self._short if size <= SHORT_BODY else self._long
        self._requests[sender] += 1
        try:
            await room.take(sender, size)
            try:
                yield Arrival(self.readers, await received(request, size, self.max_body_bytes))
            finally:
                await asyncio.shield(room.give(sender, size))
        finally:
            self._requests[sender] -= 1
            if not self._requests[sender]:
                del self._requests[sender]

    def _announced(self, request: Request) -> int:
        """The length that a request says its body has; the longest where it says none."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            # Browsers send other content types to any server without a preflight request, whatever page asks for it.
            raise ApiError(415, "send Content-Type: application/json", code="unsupported_media_type")
        text = request.headers.get("content-length", "")
        size = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else self.max_body_bytes
        return size if size <= self.max_body_bytes else _refuse(self.max_body_bytes)


async def received(request: Request, announced: int, limit: int) -> bytearray:
    """The body of a request.

    Args:
        request: whose body nobody has read.
        announced: bytes for which there is room, at most ``limit``.
        limit: longest body, for the error.

    Raises:
        ApiError: 413 if it is too long, 408 if it arrives too slowly, 499 if the client has gone.
    """
    body, size = bytearray(announced), 0  # which does not move as it grows
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                if size + len(chunk) > announced:  # the server drops the rest after the response
                    _refuse(limit)
                body[size : size + len(chunk)] = chunk
                size += len(chunk)
    except TimeoutError:
        raise ApiError(408, f"the request took more than {BODY_SECONDS:g} seconds to arrive") from None
    except ClientDisconnect:
        raise ApiError(499, "the client closed the connection") from None
    del body[size:]
    return body


class Arrival:
    """A request whose body is there.

    Attributes:
        body: the bytes, until they are parsed.
    """

    def __init__(self, readers: asyncio.Semaphore, body: bytearray):
        self._readers, self.body = readers, body

    async def parse(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Parses the body, which is then forgotten, and returns what ``read(value, *arguments)`` does, in a thread.

        Raises:
            ApiError: 400 if it is not JSON, 413 if it has too many values.
        """
        return await self.run(lambda: read(parse_json(self.body), *arguments))

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns or raises in a thread, of which there are few."""
        async with self._readers:
            try:
                return await run_in_threadpool(function, *arguments)
            except ApiError as error:
                # Frames of a traceback hold what was read, which may be a hundred megabytes, until the error is sent.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                raise


def _refuse(limit: int) -> NoReturn:
    raise ApiError(413, f"the request body has more than {limit} bytes", code="request_too_large")


def longest_body(asked: int | None, reads_images: bool) -> int:
    """Bytes of the longest body that a server accepts: those that were asked for, else by what its model reads."""
    return asked if asked is not None else BODY_WITH_IMAGES if reads_images else BODY_OF_TEXT


def busy(message: str) -> ApiError:
    """Status 429, which clients answer by trying again."""
    return ApiError(429, f"{message}; try again later", code="queue_full", headers={"Retry-After": "1"})
