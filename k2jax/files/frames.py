"""Messages between processes as frames: two lengths, a record and a payload of these lengths, neither beyond a bound.

What the two hold is the matter of those who send them. Nothing that is received is executed.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import BinaryIO, NamedTuple

_HEAD = struct.Struct("!II")
_CHUNK = 1 << 20


class FrameError(Exception):
    """What arrived is no message, or the other side is gone."""


class Bounds(NamedTuple):
    """Bytes that the parts of a frame may have."""

    record: int
    payload: int

    def check(self, record: int, payload: int) -> None:
        """Raises FrameError for lengths beyond the bounds."""
        if record > self.record or payload > self.payload:
            raise FrameError(f"a message of {record + payload:,} bytes is too long")


lengths = _HEAD.pack
"""The first bytes of a frame: from the bytes of its record and of its payload, which follow."""


class FrameDecoder:
    """Takes bytes as they come and gives the frames that are complete.

    Attributes:
        bounds: of the next frames.
    """

    def __init__(self, bounds: Bounds):
        self.bounds = bounds
        self._bytes = bytearray()  # of a frame that is not complete
        self._needed = 0  # bytes before more is known of it

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._bytes)

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The records and payloads of the frames that ``data`` completes, in order.

        Raises:
            FrameError: one is too long; it is seen by its lengths.
        """
        if self._bytes:
            self._bytes += data
            if len(self._bytes) < self._needed:
                return []
            data = bytes(self._bytes)
            self._bytes.clear()
        frames, begin, size = [], 0, len(data)
        most_record, most_payload = self.bounds
        while (text := begin + _HEAD.size) <= size:
            record, payload = _HEAD.unpack_from(data, begin)
            if record > most_record or payload > most_payload:
                self.bounds.check(record, payload)
            middle = text + record
            end = middle + payload
            if end > size:
                self._needed = end - begin
                break
            frames.append((data[text:middle], data[middle:end]))
            begin = end
        else:
            self._needed = _HEAD.size
        if begin < size:
            self._bytes += data[begin:] if begin else data
        return frames


def receive(connection: socket.socket, bounds: Bounds, deadline: float | None = None) -> tuple[bytes, bytes]:
    """The record and the payload of the next frame of a blocking socket.

    Args:
        connection: where it arrives.
        bounds: of its lengths.
        deadline: of ``time.monotonic``; None waits for ever.

    Raises:
        TimeoutError: it has not arrived in time.
        FrameError: it is too long, or the connection has ended.
    """
    record, payload = _HEAD.unpack(_exactly(connection, _HEAD.size, deadline))
    bounds.check(record, payload)
    return _exactly(connection, record, deadline), _exactly(connection, payload, deadline)


def read_frame(file: BinaryIO, bounds: Bounds) -> tuple[bytes, bytes]:
    """``receive`` from the buffered file of a socket: short frames that have come together take one call of the system.

    Args:
        file: of ``socket.makefile``, from which everything is read that arrives.
        bounds: of the frame's lengths.

    Raises:
        FrameError: it is too long, or the connection has ended.
    """
    record, payload = _HEAD.unpack(_read(file, _HEAD.size))
    bounds.check(record, payload)
    return _read(file, record), _read(file, payload)


def _read(file: BinaryIO, count: int) -> bytes:
    try:
        data = file.read(count)
    except (OSError, ValueError) as error:  # ValueError: it was closed
        raise FrameError(str(error)) from None
    if len(data) < count:
        raise FrameError("the end of the connection")
    return data


def receive_into(connection: socket.socket, record: int, buffer: memoryview) -> tuple[bytes, int]:
    """The record of the next frame of a blocking socket and the bytes of its payload, which go into a buffer.

    Args:
        connection: where it arrives; its own timeout is that of every part.
        record: bytes that the record may have.
        buffer: for the payload, of bytes; its length is the bound of the payload.

    Raises:
        TimeoutError: nothing has arrived for as long as the timeout.
        FrameError: it is too long, or the connection has ended.
    """
    head = _exactly(connection, _HEAD.size, None)
    length, payload = _HEAD.unpack(head)
    Bounds(record, len(buffer)).check(length, payload)
    text = _exactly(connection, length, None)
    filled = 0
    while filled < payload:
        try:
            count = connection.recv_into(buffer[filled:payload])
        except TimeoutError:
            raise
        except OSError as error:
            raise FrameError(str(error)) from None
        if not count:
            raise FrameError("the end of the connection")
        filled += count
    return text, payload


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None and not select.select([connection], [], [], max(0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        try:
            part = connection.recv(min(count - len(parts), _CHUNK))
        except TimeoutError:  # the socket's own
            raise
        except OSError as error:
            raise FrameError(str(error)) from None
        if not part:
            raise FrameError("the end of the connection")
        parts += part
    return bytes(parts)
