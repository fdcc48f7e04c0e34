"""The proxy of one sandbox: an HTTP/1.1 server on a Unix socket, within limits, that reaches listed hosts alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
from http import HTTPStatus
import os
from pathlib import Path
import resource
import tempfile
import time
from typing import ClassVar

from k2jax.agents.egress import resolver
from k2jax.agents.egress.allow_list import AllowList, Destination
from k2jax.agents.egress.egress_log import EgressEntry, EgressLog
from k2jax.agents.egress.exchange import Origin, carry_out
from k2jax.agents.egress.request import ProxyRequest, RefusedError, read_request
from k2jax.agents.egress.tunnel import join
from k2jax.errors import InfrastructureError, abbreviate

_SOCKETS = "/var/tmp"  # where names of sockets are short
_MOST_CONNECTIONS = 1024
"""Connections of all proxies of this process together, where it may have four times as many descriptors."""
_LINGERING = 1.0
"""How long a client that was refused may still send [s]."""
_MOST_LINGERING = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class EgressLimits:
    """What one sandbox may ask of other machines.

    Attributes:
        requests: in all, tunnels and refused ones included; then the proxy is closed.
        connections: at a time.
        sent: bytes to hosts, in all.
        received: bytes from hosts, in all.
        header_bytes: of a request, and of an answer.
        header_seconds: in which the headers of a request arrive [s].
        connect_seconds: in which one address of a host answers [s].
        seconds: of a request or a tunnel [s].
        total_seconds: from the opening on, in which requests are carried out [s].
    """

    requests: int = 2000
    connections: int = 32
    sent: int = 64 << 20
    received: int = 4 << 30
    header_bytes: int = 32 << 10
    header_seconds: float = 15.0
    connect_seconds: float = 15.0
    seconds: float = 600.0
    total_seconds: float = 86400.0


class EgressProxy:
    """Serves one sandbox from ``open`` to ``close``, on the event loop of both.

    Attributes:
        folder: with the socket alone, for the sandbox; who else uses this machine cannot enter it.
        socket: name of the socket in it.
        log: of all requests that have ended.
    """

    socket = "proxy"
    _open: ClassVar[int] = 0  # connections of all proxies

    def __init__(self, allowed: AllowList, hosts: Sequence[str], limits: EgressLimits):
        """Use ``open``."""
        self._allowed, self._limits = allowed.chosen(hosts), limits
        self._resolver = resolver.PinnedResolver(allowed, resolver.look_up)
        self.log = EgressLog(hosts)
        self._tasks: set[asyncio.Task] = set()
        self._requests = self._sent = self._received = 0

    @classmethod
    async def open(
        cls,
        allowed: AllowList,
        hosts: Sequence[str],
        limits: EgressLimits = EgressLimits(),
    ) -> EgressProxy:
        """Begins to serve.

        Args:
            allowed: what the user allows.
            hosts: what the task asks for.
            limits: see ``EgressLimits``.

        Raises:
            UserError: the user has not allowed one of the hosts.
            InfrastructureError: the socket cannot be made.
        """
        proxy = cls(allowed, hosts, limits)
        try:
            proxy._outer = tempfile.TemporaryDirectory(prefix="k2jax-", dir=_SOCKETS)
            proxy.folder = Path(proxy._outer.name) / "egress"
            proxy.folder.mkdir()
            os.chmod(proxy.folder, 0o755)
            socket = str(proxy.folder / cls.socket)
            proxy._began = time.monotonic()
            proxy._server = await asyncio.start_unix_server(
                proxy._accept, socket, limit=limits.header_bytes, backlog=limits.connections
            )
            os.chmod(socket, 0o666)
        except OSError as error:
            raise InfrastructureError(f"no proxy for a sandbox: {error.strerror or error}") from None
        return proxy

    async def close(self) -> None:
        """Ends every connection; further calls do nothing."""
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outer.cleanup()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        EgressProxy._open += 1
        entry = EgressEntry(at=time.monotonic() - self._began)
        try:
            if len(self._tasks) > self._limits.connections or EgressProxy._open > _most_connections():
                self._requests += 1
                entry.reason = "too many connections at a time"
            else:
                await self._serve(reader, writer, entry)
        except asyncio.CancelledError:  # by ``close``; nobody waits for this task who would have to know
            entry.reason = entry.reason or "the sandbox was closed"
        finally:
            EgressProxy._open -= 1
            self._tasks.discard(task)
            entry.seconds = time.monotonic() - self._began - entry.at
            if entry.method or entry.reason:
                self.log.add(entry)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: EgressEntry) -> None:
        """Answers one request, and keeps in its entry what became of it."""
        left = self._limits.total_seconds - entry.at
        try:
            async with asyncio.timeout(max(0.0, min(self._limits.seconds, left))):
                request = await self._request(reader, entry)
                if request is not None:
                    await self._answer(request, reader, writer, entry)
        except RefusedError as error:
            entry.reason = error.reason
            await self._refuse(error, reader, writer, entry)
        except TimeoutError:
            entry.reason = "it takes too long"
            await self._refuse(RefusedError(504, entry.reason), reader, writer, entry)
        except OSError as error:
            entry.reason = f"the connection broke: {error.strerror or error}"
            await self._refuse(RefusedError(502, entry.reason), reader, writer, entry)

    async def _request(self, reader: asyncio.StreamReader, entry: EgressEntry) -> ProxyRequest | None:
        """Reads a request; None where there is none."""
        self._requests += 1
        if self._requests >= self._limits.requests:
            self._server.close()  # no further one costs anything
        if self._requests > self._limits.requests:
            raise RefusedError(429, f"this sandbox has made {self._limits.requests:,} requests, and may make no more")
        try:
            async with asyncio.timeout(self._limits.header_seconds):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise RefusedError(431, f"the request has more than {self._limits.header_bytes:,} bytes") from None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise RefusedError(400, "the request has no end") from None
        except TimeoutError:
            raise RefusedError(408, "the request does not come to its end") from None
        entry.path = head.partition(b"\r\n")[0].decode("latin-1")  # where it cannot be read: what it was
        request = read_request(head)
        entry.method, (entry.host, entry.port, _), entry.path = request.method, request.destination, request.path
        return request

    async def _answer(
        self, request: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: EgressEntry
    ) -> None:
        count = functools.partial(self._count, entry)
        async with contextlib.AsyncExitStack() as stack:
            streams = await self._connect(request.destination)
            stack.callback(streams[1].close)
            origin = Origin(*streams, count)
            if not request.destination.is_tunnel:
                await carry_out(request, origin, writer, functools.partial(setattr, entry, "status"))
                return
            entry.status = 200
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await join(request.destination.host, origin, reader, writer)

    async def _connect(self, destination: Destination) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a host that is allowed, at one of the addresses that were looked at."""
        host, port, is_tunnel = destination
        if destination not in self._allowed:
            way = " through a tunnel" if is_tunnel else ""
            raise RefusedError(403, f"{abbreviate(host)} at port {port} may not be reached from here{way}")
        try:
            addresses = await self._resolver.addresses(destination)
        except (OSError, UnicodeError) as error:
            reason = str(error) or "it takes too long"
            raise RefusedError(502, f"{host} cannot be resolved: {reason}") from None
        if not addresses:
            raise RefusedError(403, f"{host} has no public address")
        failure: OSError = TimeoutError()
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect_seconds):
                    return await asyncio.open_connection(address, port, limit=self._limits.header_bytes)
            except OSError as error:
                failure = error
        raise RefusedError(502, f"{host} does not answer: {failure.strerror or type(failure).__name__}")

    def _count(self, entry: EgressEntry, sent: int, received: int) -> None:
        entry.sent, entry.received = entry.sent + sent, entry.received + received
        self._sent, self._received = self._sent + sent, self._received + received
        for word, number, most in (("sent", self._sent, self._limits.sent),
                                   ("received", self._received, self._limits.received)):  # fmt: skip
            if number > most:
                raise RefusedError(429, f"this sandbox has {word} {most:,} bytes, and may have no more")

    async def _refuse(
        self, error: RefusedError, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: EgressEntry
    ) -> None:
        """Says why, unless an answer has begun, which is then cut off."""
        if entry.status:
            writer.transport.abort()
            return
        entry.status = error.status
        text = f"{error.reason}\n".encode("ascii", "backslashreplace")
        allow = "Allow: GET, HEAD\r\n" if error.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{allow}Connection: close\r\n"
        head += f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n\r\n"
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGERING):  # what nobody reads of it would cost it the answer
                writer.write(head.encode() + (b"" if entry.method == "HEAD" else text))
                writer.write_eof()
                read = 0
                while read < _MOST_LINGERING and (data := await reader.read(1 << 16)):
                    read += len(data)


def _most_connections() -> int:
    return min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
