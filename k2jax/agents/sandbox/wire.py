"""Messages between a program and its spawner over a socket: a record in JSON, bytes, and sometimes one descriptor."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, NamedTuple

_HEAD = struct.Struct("!II")
CHUNK = 1 << 18


class Message(NamedTuple):
    """One message.

    Attributes:
        record: what JSON holds.
        payload: bytes beside it.
    """

    record: dict[str, Any]
    payload: bytes = b""


def encode(message: Message) -> bytes:
    """The bytes of a message: two lengths, the record, the payload."""
    return encode_head(message) + message.payload


def encode_head(message: Message) -> bytes:
    """The bytes of a message before its payload, for a payload that is too large to copy."""
    text = json.dumps(message.record).encode()
    return _HEAD.pack(len(text), len(message.payload)) + text


class Decoder:
    """Takes bytes as they come and gives the messages that are complete."""

    def __init__(self):
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Messages that ``data`` completes, in order."""
        self._bytes += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._bytes) < _HEAD.size:
            return None
        text, payload = _HEAD.unpack_from(self._bytes)
        end = _HEAD.size + text + payload
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as received:
            record = json.loads(bytes(received[_HEAD.size : _HEAD.size + text]))
            message = Message(record, bytes(received[_HEAD.size + text : end]))
        del self._bytes[:end]
        return message


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Bytes and descriptors that have arrived; no bytes at the end of the connection.

    Descriptors are not passed on to programs that this process starts.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, CHUNK, 8)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors
