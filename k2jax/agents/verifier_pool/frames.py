"""Messages between processes: four bytes of length, then a JSON object. Nothing that is read is executed."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any

from k2jax.files.bounded_json import parse_bounded_json

LARGEST = 64 << 20
"""Bytes of a message; a longer one is refused by its sender and ends the conversation with its receiver."""
_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """What arrived is no message, or the other side is gone."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message.

    Raises:
        ValueError: it is no JSON, or too long.
        OSError: the other side is gone.
    """
    raw = json.dumps(message, allow_nan=False).encode()
    if len(raw) > LARGEST:
        raise ValueError(f"a message of {len(raw)} bytes is too long")
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive(connection: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """The next message.

    Args:
        connection: where it arrives.
        deadline: of ``time.monotonic``; None waits for ever.

    Raises:
        TimeoutError: it has not arrived in time.
        FrameError: the connection has ended, or what arrived is no message.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if length > LARGEST:
        raise FrameError(f"a message of {length} bytes")
    try:
        message = parse_bounded_json(_exactly(connection, length, deadline))
    except ValueError:
        raise FrameError("a message that is not JSON") from None
    if not isinstance(message, dict):
        raise FrameError("a message that is no JSON object")
    return message


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None and not select.select([connection], [], [], max(0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        try:
            part = connection.recv(min(count - len(parts), 1 << 20))
        except OSError as error:
            raise FrameError(str(error)) from None
        if not part:
            raise FrameError("the end of the connection")
        parts += part
    return bytes(parts)
