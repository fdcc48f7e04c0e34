"""Runs the application with uvicorn on a socket, and shuts it down gracefully."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
from typing import Any, Protocol

import uvicorn
from uvicorn.config import Config

from k2jax.agents.web.protocol import LOGGER, ConnectionLimits, LimitedHttpProtocol
from k2jax.errors import UserError

_FLUSH_SECONDS = 5.0  # time after the grace period in which the last responses are written


class Stoppable(Protocol):
    """What runs behind the application.

    Attributes:
        closing: whether new requests are rejected because the server is shutting down.
    """

    closing: bool

    def cancel_all(self) -> None:
        """Ends every request."""


class Server(uvicorn.Server):
    """A server that, on SIGTERM or SIGINT, rejects new requests and cancels running ones after a grace period."""

    def __init__(self, config: Config, service: Stoppable, grace_seconds: float, announcement: str):
        super().__init__(config)
        self._service, self._grace_seconds, self._announcement = service, grace_seconds, announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Prints the server's address once it listens."""
        await super().startup(sockets)
        print(self._announcement, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for running requests, at most for the grace period."""
        self._service.closing = True
        timer = asyncio.get_running_loop().call_later(self._grace_seconds, self._service.cancel_all)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def open_socket(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen yet; port 0 binds any free port.

    Raises:
        UserError: the address cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
    return sock


def server_config(app: object, limits: ConnectionLimits = ConnectionLimits(), **options: Any) -> Config:  # noqa: B008
    """Returns how every server of this package listens.

    There is no access log because request paths can contain secrets.

    Args:
        app: the ASGI application.
        limits: of its connections.
        options: further ones of uvicorn's.
    """
    protocol: Any = functools.partial(LimitedHttpProtocol, limits=limits)
    config = Config(
        app, http=protocol, ws="none", lifespan="off", access_log=False, log_level="warning", server_header=False,
        **options,
    )  # fmt: skip
    LOGGER.setLevel(logging.ERROR)  # uvicorn has just set all its loggers
    return config


def run_server(
    app: object, service: Stoppable, sock: socket.socket, grace_seconds: float, announcement: str = "serving at {url}"
) -> None:
    """Serves until a signal ends the server.

    Args:
        app: the ASGI application.
        service: told when the server shuts down.
        sock: see ``open_socket``.
        grace_seconds: time for running requests after a signal [s].
        announcement: printed once the server listens; ``{url}`` is its address.
    """
    logging.getLogger("asyncio").setLevel(logging.WARNING)  # which ``cli`` silences, for checkpoints
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    config = server_config(app, timeout_graceful_shutdown=round(grace_seconds + _FLUSH_SECONDS))
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown, and the default handler would change the exit code.
        signal.signal(number, lambda *_: None)
    Server(config, service, grace_seconds, announcement.format(url=url)).run(sockets=[sock])
