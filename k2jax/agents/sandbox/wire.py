"""Messages between a program and its spawner over a socket: a record in JSON, bytes, and sometimes one descriptor."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, NamedTuple

from k2jax.files.frames import Bounds, FrameDecoder, lengths

CHUNK = 1 << 18
_ANY = 1 << 32  # what a length can say


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
    return lengths(len(text), len(message.payload)) + text


class Decoder:
    """Takes bytes as they come and gives the messages that are complete. Who sends them is trusted."""

    def __init__(self):
        self._frames = FrameDecoder(Bounds(_ANY, _ANY))

    def feed(self, data: bytes) -> list[Message]:
        """Messages that ``data`` completes, in order."""
        return [Message(json.loads(text), payload) for text, payload in self._frames.feed(data)]


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Bytes and descriptors that have arrived; no bytes at the end of the connection.

    Descriptors are not passed on to programs that this process starts.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, CHUNK, 8)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors
