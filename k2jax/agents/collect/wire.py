"""Frames between the processes of the rollout manager: a kind, which is a byte, and bytes that the kind explains.

Nothing is unpickled, and a frame that is longer than any may be ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from k2jax.files.frames import Bounds, FrameDecoder, FrameError, lengths

LARGEST = 1 << 28
"""Bytes of a frame at most: a completion of a million tokens, with the experts of the largest models."""
_KINDS = [bytes((kind,)) for kind in range(256)]


class FrameConnection(asyncio.Protocol):
    """One end of a stream socket. Frames that are sent in one turn of the event loop leave together.

    Args:
        on_frame: called with the kind and the bytes of every frame, in order.
        on_end: called once when the connection has ended.
    """

    def __init__(self, on_frame: Callable[[int, bytes], None], on_end: Callable[[], None]):
        self._on_frame, self._on_end = on_frame, on_end
        self._received = FrameDecoder(Bounds(1, LARGEST))
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; the event loop calls it."""
        self._transport, self._loop = transport, asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Hands over the frames that ``data`` completes; the event loop calls it."""
        try:
            frames = self._received.feed(data)
        except FrameError:
            self._transport.abort()
            return
        for kind, body in frames:
            self._on_frame(kind[0], body)

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed; the event loop calls it."""
        self._transport = None
        self._on_end()

    def send(self, kind: int, *parts: bytes) -> None:
        """Sends a frame of the parts, one behind another; nothing where the connection has ended.

        Raises:
            ValueError: the frame is too long.
        """
        length = sum(map(len, parts))
        if length > LARGEST:
            raise ValueError(f"a frame of {length} bytes is too long")
        if self._transport is None:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += (lengths(1, length), _KINDS[kind], *parts)

    def close(self) -> None:
        """Sends what waits and closes the socket."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            self._transport.write(b"".join(unsent))
