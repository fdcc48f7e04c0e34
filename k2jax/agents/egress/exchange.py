"""A request in the clear: carried to its host on a connection of its own, and the answer back, both read and written
again by h11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11

from k2jax.agents.egress.request import ProxyRequest, RefusedError, end_to_end

CHUNK = 1 << 16

Count = Callable[[int, int], None]
"""Counts bytes that were sent and received; RefusedError where they are too many."""


class Origin:
    """A connection to a host.

    Args:
        reader: of what it says.
        writer: to it.
        count: see ``Count``.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count):
        self._reader, self._writer, self._count = reader, writer, count

    async def read(self) -> bytes:
        """What has come; empty at the end."""
        data = await self._reader.read(CHUNK)
        self._count(0, len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Sends bytes, when there is room for them."""
        self._count(len(data), 0)
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Tells the host that nothing more comes."""
        self._writer.write_eof()


async def carry_out(
    request: ProxyRequest, origin: Origin, writer: asyncio.StreamWriter, answered: Callable[[int], None], most: int
) -> None:
    """Asks a host, and passes its answer on; redirects too, which the client may follow.

    Args:
        request: that is allowed.
        origin: its host.
        writer: to the client.
        answered: called with the answer's status, before its first byte is passed on.
        most: bytes of the answer's headers.

    Raises:
        RefusedError: the host's answer cannot be read, or is too long.
        OSError: one of the connections broke.
    """
    headers = [(b"host", request.authority.encode()), *request.headers, (b"connection", b"close")]
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=most)
    asked = client.send(h11.Request(method=request.method, target=request.path, headers=headers))
    await origin.write((asked or b"") + (client.send(h11.EndOfMessage()) or b""))
    event: object = None
    while not isinstance(event, h11.EndOfMessage):
        try:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(await origin.read())
            elif isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
                writer.write(_passed_on(event, request.connection, answered))
                await writer.drain()
            elif not isinstance(event, h11.InformationalResponse):
                raise RefusedError(502, f"{request.authority} has given no answer")
        except h11.ProtocolError as error:
            raise RefusedError(502, f"the answer of {request.authority} cannot be read: {error}") from None


def _passed_on(event: h11.Event, connection: h11.Connection, answered: Callable[[int], None]) -> bytes:
    """A part of an answer as the client gets it; what follows the body in it, trailers, is left out."""
    if isinstance(event, h11.Response):
        headers = end_to_end(list(event.headers))
        if not any(name == b"transfer-encoding" for name, _ in event.headers):
            headers += [(name, value) for name, value in event.headers if name == b"content-length"]
        response = h11.Response(
            status_code=event.status_code, reason=event.reason, headers=[*headers, (b"connection", b"close")]
        )
        answered(event.status_code)
        return connection.send(response) or b""
    return connection.send(h11.EndOfMessage() if isinstance(event, h11.EndOfMessage) else event) or b""
