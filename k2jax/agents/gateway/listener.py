"""One TCP address for all episodes of a process: each answers below the path of its own rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
import socket
from typing import NamedTuple
from weakref import WeakKeyDictionary

from starlette.types import ASGIApp, Receive, Scope, Send

from k2jax.agents.api import ApiError
from k2jax.agents.gateway.socket import serving
from k2jax.agents.web.http import error_response
from k2jax.agents.web.protocol import ConnectionLimits
from k2jax.agents.web.server import open_socket, server_config
from k2jax.errors import UserError

_LIMITS = ConnectionLimits()
_ANY = {"0.0.0.0", "::"}
_HIGHEST_PORT = (1 << 16) - 1


class ListenAddress(NamedTuple):
    """Where a process listens: at the first free one of some ports.

    Attributes:
        host: name or address of an interface of this machine.
        first: of the ports; 0 is any free one.
        last: of the ports.
    """

    host: str
    first: int
    last: int

    @classmethod
    def read(cls, text: str) -> ListenAddress:
        """Reads ``HOST:PORT`` or ``HOST:PORT-PORT``.

        Raises:
            UserError: it is neither.
        """
        host, _, ports = text.rpartition(":")
        first, dash, last = ports.partition("-")
        numbers = [int(port) for port in (first, last if dash else first) if port.isascii() and port.isdecimal()]
        is_range = len(numbers) == 2 and numbers[0] <= numbers[1] <= _HIGHEST_PORT and (numbers[0] > 0 or not dash)
        if not host or not is_range:
            raise UserError(f"listen={text} is no address; write HOST:PORT, or HOST:PORT-PORT for several processes")
        return cls(host.removeprefix("[").removesuffix("]"), *numbers)

    @property
    def is_any(self) -> bool:
        """Whether it names no interface, so that nobody can connect to it by its name."""
        return self.host in _ANY

    def open(self) -> socket.socket:
        """A socket at the first free port.

        Raises:
            UserError: none is free.
        """
        for port in range(self.first, self.last + 1):
            try:
                sock = open_socket(self.host, port)
            except UserError:
                continue
            try:
                sock.listen()  # until then another process may bind it, too
                return sock
            except OSError:
                sock.close()
        ports = str(self.first) if self.first == self.last else f"{self.first} to {self.last}"
        raise UserError(f"no port {ports} of {self.host} is free; choose others with listen=HOST:PORT-PORT")


class _Listener:
    """A server that is up while there are episodes."""

    def __init__(self, address: ListenAddress):
        self._address, self._changing = address, asyncio.Lock()
        self._apps: dict[str, ASGIApp] = {}
        self._server = contextlib.AsyncExitStack()
        self._users, self._port = 0, 0

    @contextlib.asynccontextmanager
    async def serving(self, path: str, app: ASGIApp) -> AsyncIterator[int]:
        """Answers below a path until the end of the block; yields the port."""
        if path in self._apps:
            raise UserError(
                f"an episode and a sub-episode of it cannot both have the scaffold 'command': {path} is taken"
            )
        self._apps[path] = app
        try:
            async with self._changing:
                if not self._users:
                    await self._start()
                self._users += 1
            try:
                yield self._port
            finally:
                async with self._changing:
                    self._users -= 1
                    if not self._users:
                        await self._server.aclose()
        finally:
            del self._apps[path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the episode to which its path belongs."""
        path = scope.get("path", "")
        app = self._apps.get("/".join(path.split("/")[:3]))  # /r/NAME
        if app is None:
            app = error_response(ApiError(404, "there is no such rollout, or it has ended"), path)
        await app(scope, receive, send)

    async def _start(self) -> None:
        async with contextlib.AsyncExitStack() as opened:
            sock = opened.enter_context(self._address.open())
            self._port = sock.getsockname()[1]
            await opened.enter_async_context(serving(server_config(self, _LIMITS), [sock]))
            self._server = opened.pop_all()


_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ListenAddress, _Listener]] = WeakKeyDictionary()


def listening(address: ListenAddress, path: str, app: ASGIApp) -> contextlib.AbstractAsyncContextManager[int]:
    """Serves a rollout, beside others of this event loop with the same address, until the end of the block.

    Args:
        address: where.
        path: of the rollout, ``/r/NAME``, which no other has.
        app: answers what is below it.

    Returns:
        A context manager that yields the port.

    Raises:
        UserError: when it is entered: no port is free.
    """
    of_loop = _listeners.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(address, _Listener(address)).serving(path, app)
