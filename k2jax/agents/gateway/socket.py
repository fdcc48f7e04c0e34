"""A Unix socket behind which one rollout alone answers: the only way out of the sandbox in which its agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
import contextlib
from pathlib import Path
import socket

from starlette.types import ASGIApp, Receive, Scope, Send
import uvicorn
from uvicorn.config import Config

from k2jax.agents.api import ApiError
from k2jax.agents.web.http import error_response
from k2jax.agents.web.protocol import ConnectionLimits
from k2jax.agents.web.server import server_config

_LIMITS = ConnectionLimits(connections=128)
"""Of one agent, whose parallel requests have a connection each."""


@contextlib.asynccontextmanager
async def rollout_socket(app: ASGIApp, path: str, file: Path) -> AsyncIterator[None]:
    """Serves the routes of one rollout on a Unix socket, until the end of the block.

    Args:
        app: the gateway's application.
        path: of the rollout, see ``RolloutAccess``; every other path is a 404.
        file: the socket's name; its folder is what a sandbox binds.

    Raises:
        OSError: the socket cannot be made, for example because its name is too long.
    """
    try:
        async with serving(server_config(_one_rollout(app, path), _LIMITS, uds=str(file))):
            yield
    finally:
        file.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def serving(config: Config, sockets: list[socket.socket] | None = None) -> AsyncIterator[None]:
    """Runs a server beside others in this process, until the end of the block.

    Args:
        config: see ``server_config``.
        sockets: bound ones; by default those that the config names.

    Raises:
        OSError: it cannot listen.
    """
    server = _QuietServer(config)
    task = asyncio.create_task(server.serve(sockets))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.005)
        if task.done():
            raise OSError(f"cannot listen on {config.uds or config.host}; the name of a socket has at most 107 bytes")
        yield
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.gather(task, return_exceptions=True)


class _QuietServer(uvicorn.Server):
    """A server beside others in one process, whose signals are none of its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's signal handlers as they are."""
        yield


def _one_rollout(app: ASGIApp, path: str) -> ASGIApp:
    """The application without the routes of others."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(f"{path}/"):
            await error_response(ApiError(404, "this socket serves one rollout alone"))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve
