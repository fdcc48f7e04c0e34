"""Frames between the processes of the rollout manager: a kind, which is a byte, and bytes that the kind explains.

Nothing is unpickled, and a frame that is longer than any may be ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import socket
import struct

from k2jax.files.frames import Bounds, FrameDecoder, FrameError, lengths

VERSION = 3
"""Of what workers, engines and the scheduler say to each other; whoever begins says it, and another is refused."""
VERSION_NUMBER = struct.Struct("<H")
LARGEST = 1 << 28
"""Bytes of a frame at most: a completion of a million tokens, with the experts of the largest models."""
MACHINE_SECONDS = 60
"""Time after which a machine that is gone without a word is missed: its connections then end [s]."""
_MISSES_MACHINES = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, MACHINE_SECONDS // 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, MACHINE_SECONDS // 6),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * MACHINE_SECONDS),  # of what was sent and not received
)
_KINDS = [bytes((kind,)) for kind in range(256)]


def version_of(body: bytes) -> int:
    """The version that a first frame says; 0 where it says none."""
    return VERSION_NUMBER.unpack_from(body)[0] if len(body) >= VERSION_NUMBER.size else 0


def other_version(who: str, version: int) -> str:
    """What is wrong where ``who`` speaks another version of the wire, and what mends it."""
    return (
        f"{who} speaks version {version} of the wire between workers and engines, and this process {VERSION}; install "
        "the same k2jax on all machines"
    )


class FrameConnection(asyncio.Protocol):
    """One end of a stream socket. Frames that are sent in one turn of the event loop leave together.

    Args:
        on_frame: called with the kind and the bytes of every frame, in order.
        on_end: called once when the connection has ended.
        largest: bytes that a received frame may have, until ``trust`` is called.
    """

    def __init__(self, on_frame: Callable[[int, bytes], None], on_end: Callable[[], None], largest: int = LARGEST):
        self._on_frame, self._on_end = on_frame, on_end
        self._received = FrameDecoder(Bounds(1, largest))
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; the event loop calls it."""
        self._transport, self._loop = transport, asyncio.get_running_loop()
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            for level, option, value in _MISSES_MACHINES:
                sock.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        """Hands over the frames that ``data`` completes; the event loop calls it."""
        try:
            frames = self._received.feed(data)
        except FrameError:
            self._transport.abort()
            return
        for kind, body in frames:
            if not kind:
                self._transport.abort()
                return
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

    def trust(self) -> None:
        """The other end has shown who it is: the next frames may be as long as any."""
        self._received.bounds = Bounds(1, LARGEST)

    def abort(self) -> None:
        """Closes the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Sends what waits and closes the socket."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            self._transport.write(b"".join(unsent))
