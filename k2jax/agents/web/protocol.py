"""HTTP/1.1 within limits: what a connection may send, and for how long, before anybody has looked at its key.

uvicorn's parser keeps a header until its end, however long it is, waits for it for ever, and starts as many pipelined
requests as arrive. Here a connection that exceeds a limit gets one line with status 431 or 408, or is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
import logging
import resource
from typing import Any, ClassVar, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

_MAX_CONNECTIONS = 2048
"""Connections of all servers of this process together, where it may have twice as many descriptors."""
_PIPELINED = 4
"""Requests that may wait behind the one that is being answered; clients send one at a time."""


LOGGER = logging.getLogger("uvicorn.error.requests")
"""Logger of errors alone: a wrong request is the client's affair, and a line for each would fill a disk."""


class ConnectionLimits(NamedTuple):
    """What the connections of one server may do.

    Attributes:
        connections: open ones; a further one is closed at once.
        header_bytes: of the request line and all headers of a request, trailers included.
        headers: of a request, trailers included.
        header_seconds: from the beginning of a request to the end of its headers, and how long a client may continue
            sending a body that nobody reads any more [s].
        reading_seconds: in which a client must take some of what waits for it, beyond what the system holds for it,
            which is a few megabytes [s].
    """

    connections: int = 1024
    header_bytes: int = 32 << 10
    headers: int = 128
    header_seconds: float = 15.0
    reading_seconds: float = 60.0


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection; see the module. uvicorn makes it with its own arguments and ``limits``."""

    _open: ClassVar[set[LimitedHttpProtocol]] = set()

    def __init__(self, *arguments: Any, limits: ConnectionLimits = ConnectionLimits(), **options: Any):  # noqa: B008
        super().__init__(*arguments, **options)
        self.logger = LOGGER
        self._limits = limits
        self._refusal: tuple[int, str] | None = None
        self._unparsed = 0  # bytes since the parser last made something of them
        self._header_bytes = self._header_count = 0
        self._is_received = False
        self._unanswered: deque[RequestResponseCycle] = deque()  # requests in the order in which they came
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None  # while the client takes too little

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes a connection beyond the limits; a client's libraries try again."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections or len(self._open) >= _max_connections():
            transport.abort()
            return
        self._open.add(self)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._open.discard(self)
        self._stop_timer()
        self._stop_write_timer()
        self._disconnect()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """What was written waits for the client; one that takes nothing is gone."""
        super().pause_writing()
        self._stop_write_timer()
        waiting = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._limits.reading_seconds, self._end_unread, waiting)

    def resume_writing(self) -> None:
        """The client has taken what was written."""
        self._stop_write_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parses what arrives, while it is within the limits."""
        if self.transport.is_closing():
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self._limits.header_bytes and not self.transport.is_closing():
            self._refuse(431, "a header is too long")
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Ends the connection: with a response where none is under way."""
        status, message = self._refusal or (400, msg)
        if self._unanswered:
            self._disconnect()
            self.transport.abort()
            return
        lines = (b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(message), b"connection: close")
        self.transport.write(STATUS_LINE[status] + b"".join(line + b"\r\n" for line in lines) + b"\r\n")
        self.transport.write(message.encode("ascii"))
        self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins, whose headers are counted anew."""
        super().on_message_begin()
        self._header_bytes = self._header_count = 0
        self._is_received = False
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer."""
        self._header_count += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the request, or lets it wait for the one before."""
        self._unparsed = 0
        self._stop_timer()
        if len(self.pipeline) >= _PIPELINED:
            self._refuse(429, "too many requests at a time")
            raise ValueError("too many pipelined requests")
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        self._unparsed = 0
        self._is_received = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A client that still sends the body of an answered request has a while to end it."""
        self._unanswered.popleft()
        super().on_response_complete()
        if not self._is_received and not self.pipeline and not self.transport.is_closing():
            self._start_timer()

    def _count(self, size: int) -> None:
        """Raises ValueError, which ends the parsing, where a request has too many headers or bytes of them."""
        self._header_bytes += size
        limits = self._limits
        if self._header_bytes > limits.header_bytes or self._header_count > limits.headers:
            self._refuse(431, "the request line and the headers are too many or too long")
            raise ValueError("too many headers")

    def _disconnect(self) -> None:
        """Lets no request write any more; uvicorn tells only the last of several."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self, status: int, message: str) -> None:
        self._refusal = (status, message)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.header_seconds, self._end_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _end_unread(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._write_timer = self.loop.call_later(self._limits.reading_seconds, self._end_unread, waiting)
        else:
            self._write_timer = None
            self.transport.abort()

    def _end_late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(408, "the request took too long to arrive")
            self.send_400_response("")


def _max_connections() -> int:
    """Connections of all servers together: the other half of the descriptors is for files and sandboxes."""
    return min(_MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
