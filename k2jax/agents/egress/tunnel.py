"""A tunnel: bytes pass as they are between a client and one host, as TLS does that begins with the host's name.

What is asked inside nobody sees. So that a host of many names is reached by the allowed one alone, the first message
must name it; OpenSSL reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
import ssl

from k2jax.agents.egress.allow_list import is_address
from k2jax.agents.egress.exchange import CHUNK, Origin
from k2jax.agents.egress.request import RefusedError

_LONGEST_HELLO = 1 << 15
_HELLO_SECONDS = 15.0


async def join(host: str, origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes both ways until both ends have ended.

    Args:
        host: that the client has asked for.
        origin: the host.
        reader: of what the client sends.
        writer: to the client.

    Raises:
        RefusedError: what the client sends is no TLS with the host, or one of the two ways is used up.
        OSError: one of the connections broke.
    """
    hello = await _hello(host, reader)
    await origin.write(hello)

    async def send(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    ways = [
        asyncio.ensure_future(_copy(lambda: reader.read(CHUNK), origin.write, origin.end)),
        asyncio.ensure_future(_copy(origin.read, send, writer.write_eof)),
    ]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


def server_name(hello: bytes) -> tuple[bool, str]:
    """Whether the first message of TLS is there, and the name of a server in it; empty for none.

    Raises:
        RefusedError: it is no such message.
    """
    names: list[str] = []

    def read(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int:
        names.append(name or "")
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # nobody goes on from here

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = read
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return False, ""
    except ssl.SSLError:
        if names:
            return True, names[0]
    raise RefusedError(403, "what is sent through the tunnel is no TLS")


async def _hello(host: str, reader: asyncio.StreamReader) -> bytes:
    data = b""
    async with asyncio.timeout(_HELLO_SECONDS):
        while len(data) < _LONGEST_HELLO and (part := await reader.read(CHUNK)):
            data += part
            is_there, name = server_name(data[:_LONGEST_HELLO])
            if is_there:
                if name.lower() != host and not (is_address(host) and not name):
                    raise RefusedError(403, f"the TLS in the tunnel is for {name[:100]!a}")
                return data
    raise RefusedError(403, "what is sent through the tunnel is no TLS")


async def _copy(
    read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]], end: Callable[[], None]
) -> None:
    while data := await read():
        await write(data)
    end()
