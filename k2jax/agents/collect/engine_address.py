"""Where an engine listens: on a Unix socket for workers of its machine, on TCP with a key for those of others.

A connection begins with one small frame of either side, a greeting, which says the version of the wire. Over TCP the
worker's has the key of the run, without which the engine answers nothing.
"""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path
import secrets
import socket
from typing import NamedTuple, Self

from k2jax.agents.collect.wire import VERSION, VERSION_NUMBER, FrameConnection
from k2jax.agents.collect.wire_messages import EngineMessage

_TCP = "tcp://"
KEY_BYTES = 32
LARGEST_GREETING = VERSION_NUMBER.size + 2 * KEY_BYTES
"""Bytes of a greeting at most."""


class EngineAddress(NamedTuple):
    """An address: a path, or ``tcp://KEY@HOST:PORT``.

    Attributes:
        path: of a Unix socket; empty for TCP.
        host: name or number of a machine.
        port: of TCP.
        key: in hexadecimal digits; empty for a Unix socket, which the permissions of its folder guard.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    key: str = ""

    @classmethod
    def parse(cls, text: str | Path) -> Self:
        """Reads an address; ``text`` is the inverse."""
        text = str(text)
        if not text.startswith(_TCP):
            return cls(path=text)
        key, _, place = text.removeprefix(_TCP).partition("@")
        host, _, port = place.rpartition(":")
        return cls(host=host, port=int(port), key=key)

    @property
    def text(self) -> str:
        """The address with its key, for files that nobody but this user can read."""
        return self.path or f"{_TCP}{self.key}@{self.host}:{self.port}"

    def __str__(self) -> str:
        """Without the key, because what is printed ends in logs."""
        return self.path or f"{_TCP}{self.host}:{self.port}"

    __repr__ = __str__

    async def connect(self, connection: FrameConnection) -> None:
        """Opens a connection and sends the worker's greeting.

        Raises:
            OSError: nobody listens there.
        """
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(lambda: connection, self.path)
        else:
            await loop.create_connection(lambda: connection, self.host, self.port)
        connection.send(EngineMessage.HELLO, greeting(self.key))


def tcp_listener(host: str) -> tuple[socket.socket, EngineAddress]:
    """A listening socket on a free port of a host, and its address with a new key."""
    listener = socket.create_server((host, 0), backlog=512)
    return listener, EngineAddress(host=host, port=listener.getsockname()[1], key=secrets.token_hex(KEY_BYTES))


def greeting(key: str = "") -> bytes:
    """The body of a greeting; the engine's own has no key."""
    return VERSION_NUMBER.pack(VERSION) + bytes.fromhex(key)


def shows_key(body: bytes, key: str) -> bool:
    """Whether a greeting has the key; how long that takes does not say how much of it is right."""
    return hmac.compare_digest(body[VERSION_NUMBER.size :], bytes.fromhex(key))
