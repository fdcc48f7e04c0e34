"""A request in the clear, on a connection of its own to its host, and the answer: h11 reads and writes both anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11

from k2jax.agents.egress.request import MOST_LINES, ProxyRequest, RefusedError, end_to_end

CHUNK = 1 << 16

Count = Callable[[int, int], None]
"""Counts bytes that were sent and received; RefusedError where they are too many."""


class Origin:
    """A connection to a host.

    Args:
        reader: of what it says; its limit is that of an answer's headers.
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

    async def head(self) -> bytes:
        """An answer up to the end of its headers.

        Raises:
            RefusedError: there is none, or it is too long.
        """
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            ended = "the answer cannot be read" if error.partial else "the host has given no answer"
            raise RefusedError(502, ended) from None
        except asyncio.LimitOverrunError:
            raise RefusedError(502, "the answer has headers that are too long") from None
        self._count(0, len(head))
        if head.count(b"\n") > MOST_LINES:
            raise RefusedError(502, f"the answer has more than {MOST_LINES} headers")
        return head

    async def write(self, data: bytes) -> None:
        """Sends bytes, when there is room for them."""
        self._count(len(data), 0)
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Tells the host that nothing more comes."""
        self._writer.write_eof()


async def carry_out(
    request: ProxyRequest, origin: Origin, writer: asyncio.StreamWriter, answered: Callable[[int], None]
) -> None:
    """Asks a host, and passes its answer on; redirects too, which the client may follow.

    Args:
        request: that is allowed.
        origin: its host.
        writer: to the client.
        answered: called with the answer's status, before its first byte is passed on.

    Raises:
        RefusedError: the host's answer cannot be read, or is too long.
        OSError: one of the connections broke.
    """
    headers = [(b"host", request.authority.encode()), *request.headers, (b"connection", b"close")]
    client = h11.Connection(h11.CLIENT)
    asked = client.send(h11.Request(method=request.method, target=request.path, headers=headers))
    await origin.write((asked or b"") + (client.send(h11.EndOfMessage()) or b""))
    try:
        event: object = None
        while not isinstance(event, h11.Response):  # before it come any number that only inform
            client.receive_data(await origin.head())
            event = client.next_event()
        while True:
            if event is h11.NEED_DATA:
                client.receive_data(await origin.read())
            else:
                writer.write(_passed_on(event, request.connection, answered))
                await writer.drain()
                await asyncio.sleep(0)  # a host may send one byte a chunk, and others use this event loop
            if isinstance(event, h11.EndOfMessage):
                return
            event = client.next_event()
    except h11.ProtocolError as error:
        raise RefusedError(502, f"the answer cannot be read: {error}") from None


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
