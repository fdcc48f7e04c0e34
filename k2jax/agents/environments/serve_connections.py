"""Bounds of a server's connections that hold before its web framework sees a byte, and whoever connects.

Without a key a client has a few seconds and a few kilobytes, and the oldest such client makes room for the newest. With
a key it may send one message at a time: the large messages of all clients take turns, and the others wait unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from k2jax.agents.environments.remote_messages import LARGEST_MESSAGE
from k2jax.errors import InfrastructureError

HEAD_SECONDS = 10.0
"""Time from a connection's first byte to the end of its handshake [s]."""
LARGEST_HEAD = 16 << 10
"""Bytes of a handshake."""
MOST_WITHOUT_KEY = 64
"""Connections whose handshake has not ended."""
SMALL = 64 << 10
"""Bytes of a message that needs no turn, and of what a client may send unasked, such as answers to pings."""
MOST_LARGE = 1
"""Larger messages that are received or parsed at a time: one of 8 MiB with a wide character takes 150 MB."""
MESSAGE_SECONDS = 60.0
"""Time of a large message from its turn on, and of a reply until the client has read it [s]."""


class Room:
    """Memory that clients' tasks and replies may take together."""

    def __init__(self, total: int):
        """Args: ``total`` in bytes."""
        self.free = total

    def take(self, size: int) -> int:
        """Takes bytes, which are to be given back, and returns their number.

        Raises:
            InfrastructureError: there are not as many.
        """
        if size > self.free:
            raise InfrastructureError(f"no memory is left for {size:,} bytes; try again later")
        self.free -= size
        return size

    def give(self, size: int) -> None:
        """Gives bytes back."""
        self.free += size


class Connections:
    """The open connections of a server; called, it gives the protocol of a new one."""

    def __init__(self, make: Callable[[], asyncio.Protocol]):
        """Args: ``make`` gives the web framework's protocol of a connection."""
        self._make = make
        self._open: dict[Any, Connection] = {}
        self._without_key: dict[Connection, None] = {}
        self._large: set[Connection] = set()
        self._turns: dict[Connection, None] = {}

    def __call__(self) -> Connection:
        """A new connection's protocol; the event loop calls it."""
        return Connection(self, self._make())

    def of(self, transport: Any) -> Connection | None:
        """The connection of a transport; None where it has ended."""
        return self._open.get(transport)

    def abort(self) -> None:
        """Closes all connections at once."""
        for connection in list(self._open.values()):
            connection.abort()

    def opened(self, connection: Connection, transport: Any) -> None:
        """A connection has no key yet."""
        self._open[transport] = connection
        self._without_key[connection] = None
        if len(self._without_key) > MOST_WITHOUT_KEY:
            next(iter(self._without_key)).abort()

    def admitted(self, connection: Connection) -> None:
        """A connection has shown a key."""
        self._without_key.pop(connection, None)

    def closed(self, connection: Connection, transport: Any) -> None:
        """A connection has ended."""
        self._open.pop(transport, None)
        self._without_key.pop(connection, None)
        self.end_turn(connection)

    def ask_turn(self, connection: Connection) -> None:
        """A connection wants to receive more than a small message; it is told when it is its turn."""
        self._turns[connection] = None
        self._next_turns()

    def end_turn(self, connection: Connection) -> None:
        """A connection's message is read, or came without a turn, or never will."""
        self._turns.pop(connection, None)
        self._large.discard(connection)
        self._next_turns()

    def _next_turns(self) -> None:
        while self._turns and len(self._large) < MOST_LARGE:
            connection = next(iter(self._turns))
            del self._turns[connection]
            self._large.add(connection)
            connection.begin_turn()


class Connection(asyncio.Protocol):
    """One connection: counts what it receives, and hands it on to the protocol of the web framework.

    Attributes:
        is_answering: whether a request is being answered, so that no other may come.
    """

    def __init__(self, connections: Connections, inner: asyncio.Protocol):
        self._connections, self._inner = connections, inner
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._received, self._most = 0, LARGEST_HEAD
        self._asks_turn = False
        self.is_answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; the event loop calls it."""
        self._transport = transport
        self._inner.connection_made(transport)
        self._set_timer(HEAD_SECONDS)
        self._connections.opened(self, transport)

    def data_received(self, data: bytes) -> None:
        """Hands bytes on, where there are not too many; the event loop calls it."""
        self._received += len(data)
        if self._received > self._most:
            self.abort()
            return
        if self._received > SMALL and not self._asks_turn:
            self._asks_turn = True
            self._transport.pause_reading()
            self._connections.ask_turn(self)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends nothing more; the event loop calls it."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The client reads too slowly; the event loop calls it."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The client has read; the event loop calls it."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed; the event loop calls it."""
        self._set_timer(None)
        self._connections.closed(self, self._transport)
        self._inner.connection_lost(error)

    def admit(self) -> None:
        """The handshake has ended, with a key: requests may come."""
        self._set_timer(None)
        self._connections.admitted(self)
        self.expect_request()

    def expect_request(self) -> None:
        """The next request may come."""
        self._received, self._most, self.is_answering = 0, LARGEST_MESSAGE + SMALL, False

    def request_received(self) -> None:
        """A whole request has come; until it is answered there is to be no other."""
        self._received, self._most, self.is_answering = 0, SMALL, True

    def request_read(self) -> None:
        """The request is parsed: its bytes are no longer held."""
        if self._asks_turn:
            self._asks_turn = False
            self._set_timer(None)
            self._connections.end_turn(self)
            self._transport.resume_reading()

    def begin_turn(self) -> None:
        """A large message may be received."""
        self._set_timer(MESSAGE_SECONDS)
        self._transport.resume_reading()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self.abort)
