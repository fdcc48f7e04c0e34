"""Serves environments to other processes over WebSockets; see ``k2jax.env.remote`` for the client.

Example:
    python -m k2jax.env.serve --port=8765

Every environment that is registered here can be asked for by name, with any task: who can connect can run what the
environments run. It listens on this machine's own address, and refuses web pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
import json
from typing import Any

from absl import flags

from k2jax import cli
from k2jax.env.environment import Environment, Step
from k2jax.env.remote import LARGEST_MESSAGE, NO_AIOHTTP, write_step
from k2jax.env.task import Task
from k2jax.env.wiring import EnvironmentMaker
from k2jax.errors import InfrastructureError, UserError


class EnvironmentServer:
    """Episodes of many clients, each in an environment of its own.

    Attributes:
        sessions: connections that are open.
    """

    def __init__(self, maker: EnvironmentMaker, limit: int = 64, timeout: float = 300.0, idle: float = 3600.0):
        """Opens nothing.

        Args:
            maker: of the environments.
            limit: connections at a time; a further one is refused.
            timeout: wall time of one reset or step [s].
            idle: time without a request after which a connection ends [s].
        """
        self._maker, self._limit, self._timeout, self._idle = maker, limit, timeout, idle
        self.sessions = 0

    async def handle(self, request: Any) -> Any:
        """A connection, from its first request to its end."""
        from aiohttp import web

        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="web pages are not served")
        if self.sessions >= self._limit:
            raise web.HTTPServiceUnavailable(text="all sessions are taken")
        self.sessions += 1
        episode = _Episode(self._maker)
        try:
            socket = web.WebSocketResponse(max_msg_size=LARGEST_MESSAGE, heartbeat=30.0)
            await socket.prepare(request)
            with contextlib.suppress(TimeoutError, ConnectionError):
                while True:
                    message = await socket.receive(timeout=self._idle)
                    if message.type.name != "TEXT":
                        break
                    await socket.send_str(await self._reply(episode, message.data))
            await socket.close()
            return socket
        finally:
            self.sessions -= 1
            await episode.close()

    async def _reply(self, episode: _Episode, text: str) -> str:
        try:
            async with asyncio.timeout(self._timeout):
                step = await episode.ask(json.loads(text))
            reply = json.dumps({"step": write_step(step), "tools": list(episode.tools)})
            if len(reply) > LARGEST_MESSAGE:
                raise InfrastructureError(f"a reply of {len(reply):,} bytes is too long")
            return reply
        except UserError as error:
            kind, message = "user", str(error)
        except TimeoutError:
            kind, message = "infrastructure", f"no step within {self._timeout:g} s"
        except Exception as error:  # of whatever the environment runs
            kind, message = "infrastructure", f"{type(error).__name__}: {error}"
        return json.dumps({"error": {"kind": kind, "message": message}})


class _Episode:
    """The environment of a connection, made with its first task."""

    def __init__(self, maker: EnvironmentMaker):
        self._maker = maker
        self._environment: Environment | None = None

    @property
    def tools(self) -> Any:
        return getattr(self._environment, "tools", ())

    async def ask(self, request: dict[str, Any]) -> Step:
        if request["method"] == "reset":
            await self.close()
            task = Task.from_json(request["task"])
            self._environment = self._maker.make(task)
            return Step(await self._environment.reset(task, int(request["seed"])))
        if request["method"] != "step" or self._environment is None:
            raise UserError("an episode begins with a reset and goes on with steps")
        return await self._environment.step(request["action"])

    async def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            with contextlib.suppress(InfrastructureError):
                await environment.close()


@contextlib.asynccontextmanager
async def serving(server: EnvironmentServer, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves until the end of the block; gives the address, ``ws://HOST:PORT``.

    Raises:
        UserError: the package aiohttp is missing, or the address is taken.
    """
    try:
        from aiohttp import web
    except ImportError:
        raise UserError(NO_AIOHTTP) from None
    application = web.Application()
    application.router.add_get("/", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
        yield f"ws://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; another one lets other machines in.", **to)
    flags.DEFINE_integer("port", 8765, "Port to listen on; 0 takes a free one.", **to, lower_bound=0)
    flags.DEFINE_integer("sessions", 64, "Connections at a time.", **to, lower_bound=1)
    flags.DEFINE_float("timeout", 300.0, "Wall time of one reset or step [s].", **to, lower_bound=0.1)
    flags.DEFINE_string("sandbox", "bubblewrap", "Backend of sandboxes.", **to)
    flags.DEFINE_string("images", "", "Folder that clients may choose images from; empty refuses all.", **to)
    flags.DEFINE_string("repositories", "", "Folder that clients may choose git repositories from, the same.", **to)


def main(values: flags.FlagValues) -> None:
    """Runs the command until it is interrupted."""

    async def serve() -> None:
        maker = EnvironmentMaker(values.sandbox, images=values.images, repositories=values.repositories)
        server = EnvironmentServer(maker, values.sessions, values.timeout)
        async with serving(server, values.host, values.port) as url:
            print(f"environments at {url}", flush=True)
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    cli.run(main, define, __doc__)
