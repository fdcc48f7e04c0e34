"""Hosts on this machine's loopback addresses, and clients of a proxy that write what they like."""

import asyncio
import contextlib

from k2jax.agents.egress import resolver
from k2jax.agents.egress.allow_list import AllowList
from k2jax.agents.egress.egress_log import EGRESS
from k2jax.agents.egress.proxy import EgressLimits, EgressProxy

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

REACH = """
import socket, sys
port, reached = int(sys.argv[1]), []
def tell(where, answer):
    if b'hello' in answer: reached.append(where)
for address in ('127.0.0.1', '127.0.0.2', '0.0.0.0', sys.argv[2]):
    try:
        with socket.create_connection((address, port), 2) as s:
            s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); tell(address, s.recv(999))
    except OSError: pass
hosts = ['127.0.0.1', 'localhost', '0.0.0.0', '[::1]', '[::]', '[::ffff:127.0.0.1]', '127.1', '2130706433', '0x7f.1',
         '127.0.0.3', 'loop.example', 'a.example@127.0.0.1', 'localhost.', sys.argv[2]]
for host in hosts:
    for ask in ('GET http://%s:%d/ HTTP/1.1', 'CONNECT %s:%d HTTP/1.1', 'GET / HTTP/1.1'):
        line = ask % (host, port) if '%' in ask else ask
        with socket.create_connection(('127.0.0.1', 3128), 5) as s:
            s.sendall((line + '\\r\\nHost: %s:%d\\r\\n\\r\\n' % (host, port)).encode()); s.shutdown(socket.SHUT_WR)
            tell(line, b''.join(iter(lambda: s.recv(65536), b'')))
print(reached)
"""
"""A program in a sandbox that looks for a service of the host at a port, directly and by the proxy."""
FLOOD = r"""
import socket, threading, time
HEADS = [b'GET http://192.0.2.1/' + b'x' * 31000 + b' HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n', b'\r\n\r\n' * 8000,
         b'GET http://192.0.2.9/ HTTP/1.1\r\nHost: 192.0.2.9\r\n' + b'a:\r\n' * 7000 + b'\r\n', b'', b'\0' * 60000,
         b'CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n' + b'\x16\x03\x01\xff\xff' * 9000]
def ask(number):
    held = []
    while time.monotonic() < end:
        try:
            s = socket.create_connection(('127.0.0.1', 3128), 5); s.sendall(HEADS[number % len(HEADS)])
            if number % 3: s.recv(1)
            else: held = [*held, s][-20:]
        except OSError: pass
        number += 1
end = time.monotonic() + 5
threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
"""
"""A program that asks the proxy for as much as it can, in wrong ways, and holds connections."""


class OriginHost:
    """A host that answers every request in one way.

    Attributes:
        asked: all that was sent, one text of bytes for each connection.
        port: that is free on the address.
    """

    def __init__(self, answer=HELLO):
        self.asked, self._answer = [], answer

    @contextlib.asynccontextmanager
    async def at(self, address="127.0.0.1", port=0):
        """Listens until the end of the block."""
        server = await asyncio.start_server(self._serve, address, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if callable(self._answer):
                self.asked.append(b"")
                await self._answer(reader, writer)
            else:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self._answer)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def proxied(allowed, hosts=None, **limits):
    """A proxy for a task that asks for all names of a user's list, or for ``hosts``."""
    asked = [text.rpartition("://")[2] for text in allowed] if hosts is None else hosts
    proxy = await EgressProxy.open(AllowList.of_user(allowed), asked, EgressLimits(**limits))
    try:
        yield proxy
    finally:
        await proxy.close()


def named(monkeypatch, **names):
    """Resolves these names, whose dots are underscores, and no others; returns the names that are looked up."""
    known, asked = {name.replace("_", "."): addresses for name, addresses in names.items()}, []

    async def look_up(host):
        asked.append(host)
        if host not in known:
            raise OSError("Name or service not known")
        found = known[host]
        return found.pop(0) if found and isinstance(found[0], list) else found

    monkeypatch.setattr(resolver, "look_up", look_up)
    return asked


async def ask(proxy, request, *, ended=False):
    """What a proxy answers to a request, given as bytes or as a URL."""
    request = get(request) if isinstance(request, str) else request
    reader, writer = await asyncio.open_unix_connection(str(proxy.folder / proxy.socket))
    with contextlib.suppress(OSError):
        writer.write(request)
        await writer.drain()
        if ended:
            writer.write_eof()
    data = b""
    with contextlib.suppress(OSError):
        while part := await asyncio.wait_for(reader.read(1 << 16), 10):
            data += part
    writer.close()
    return data


def get(url, method="GET", headers="", host=None):
    """A request as clients send it to a proxy."""
    host = url.split("/")[2] if host is None else host
    return f"{method} {url} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode("latin-1")


def status(answer):
    """The status of an answer."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def logged(proxy):
    """The log of a proxy, as an episode keeps it."""
    metadata = {}
    proxy.log.add_to(metadata)
    return metadata[EGRESS]
