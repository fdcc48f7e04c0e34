r"""Serves environments to other processes over WebSockets; see ``k2jax.agents.environments.remote`` for the client.

Example:
    python -m k2jax.env.serve --workdir=runs/environments --port=8765 --tools='search corpus=docs.jsonl'

Every client needs the key that the first start writes to the workdir; the command prints what a client has to set. Who
has the key can run any task of the environments and toolsets that are offered: those that work in the task's sandbox,
and those that --environments and --tools name with their options. It listens on this machine's own address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
import functools
from pathlib import Path
import shlex
from typing import Any

from absl import flags

from k2jax import cli
from k2jax.agents.environment import Environment, EnvironmentMaker, Observation, Step
from k2jax.agents.environments.remote import NO_AIOHTTP
from k2jax.agents.environments.remote_messages import (
    LARGEST_MESSAGE,
    PROTOCOL,
    EnvironmentRequest,
    memory_of,
    other_protocol,
    read_request,
    write_message,
    write_step,
)
from k2jax.agents.environments.remote_servers import VARIABLE
from k2jax.agents.environments.serve_connections import (
    HEAD_SECONDS,
    LARGEST_HEAD,
    MESSAGE_SECONDS,
    Connection,
    Connections,
    Room,
)
from k2jax.agents.environments.serve_offer import Offer
from k2jax.client.keys import ApiKeys, given_key, kept_key
from k2jax.errors import InfrastructureError, UserError

KEY_FILE = "environments.key"
MEBI = 1 << 20
CLOSING_SECONDS = 1.0
"""Time for a client to agree to the end of its session [s]."""
_LONGEST_REASON = 500  # characters of what went wrong


class EnvironmentServer:
    """Episodes of many clients, each in an environment of its own.

    Args:
        maker: of the environments.
        key: that every client has to show.
        offer: what tasks may name; by default what works in their sandboxes.
        limit: sessions at a time; a further one is refused.
        timeout: wall time of one reset or step [s].
        idle: time without a request after which a session ends [s].
        memory: of all clients' tasks, actions and replies together [bytes].

    Raises:
        ValueError: the key is empty.

    Attributes:
        sessions: connections with the key that are open.
    """

    def __init__(
        self,
        maker: EnvironmentMaker,
        key: str,
        offer: Offer | None = None,
        *,
        limit: int = 64,
        timeout: float = 300.0,
        idle: float = 3600.0,
        memory: int = 96 * MEBI,
    ):
        if not key:
            raise ValueError("a server of environments needs a key")
        self._maker, self._keys, self._offer = maker, ApiKeys([key]), offer or Offer()
        self._limit, self._timeout, self._idle = limit, timeout, idle
        self._room = Room(memory)
        self.sessions = 0

    async def handle(self, connections: Connections, request: Any) -> Any:
        """A connection, from its first request to its end."""
        from aiohttp import web

        if not self._keys.accept(given_key((name.lower(), value) for name, value in request.raw_headers)):
            raise web.HTTPUnauthorized(text="this server needs a key", headers={"WWW-Authenticate": "Bearer"})
        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="web pages are not served")
        if PROTOCOL not in [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]:
            raise web.HTTPUpgradeRequired(text=other_protocol("the client"))
        if self.sessions >= self._limit:
            raise web.HTTPServiceUnavailable(text="all sessions are taken")
        connection = connections.of(request.transport)
        if connection is None:
            raise web.HTTPBadRequest(text="the client has left")
        episode = _Episode(self._maker, self._offer, self._room)
        self.sessions += 1
        try:
            options = {"max_msg_size": LARGEST_MESSAGE, "heartbeat": 30.0, "timeout": CLOSING_SECONDS}
            options["protocols"] = (PROTOCOL,)
            socket = web.WebSocketResponse(compress=False, **options)
            await socket.prepare(request)
            connection.admit()
            try:
                await self._converse(socket, episode, connection)
                async with asyncio.timeout(2 * CLOSING_SECONDS):
                    await socket.close()
            except (TimeoutError, ConnectionError):  # a client that does not read, or is gone
                connection.abort()
            return socket
        finally:
            self.sessions -= 1
            await episode.close()

    async def _converse(self, socket: Any, episode: _Episode, connection: Connection) -> None:
        """Answers requests until the client leaves, asks before it is answered, or asks nothing for too long."""
        incoming = answering = asyncio.create_task(socket.receive())
        try:
            while True:
                await asyncio.wait([incoming], timeout=self._idle)
                if not incoming.done() or incoming.result().type.name != "TEXT":
                    return
                connection.request_received()
                text = incoming.result().data
                # Waiting on also answers pings, and ends the work for a client that has left.
                incoming = asyncio.create_task(socket.receive())
                answering = asyncio.create_task(self._answer(socket, episode, connection, text))
                del text
                await asyncio.wait([answering, incoming], return_when=asyncio.FIRST_COMPLETED)
                if connection.is_answering:
                    return
                await answering
        finally:
            for task in (incoming, answering):
                task.cancel()
            await asyncio.gather(incoming, answering, return_exceptions=True)

    async def _answer(self, socket: Any, episode: _Episode, connection: Connection, text: str) -> None:
        reply, held = await self._reply(episode, connection, text), 0
        try:
            with contextlib.suppress(InfrastructureError):
                held = self._room.take(3 * len(reply))  # it, its bytes, and the transport's copy of them
            if not held:
                reply = await _error("infrastructure", "no memory is left for the reply")
            connection.expect_request()
            async with asyncio.timeout(MESSAGE_SECONDS):
                await socket.send_str(reply)
        finally:
            self._room.give(held)

    async def _reply(self, episode: _Episode, connection: Connection, text: str) -> str:
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    size = self._room.take(memory_of(text))
                    request = await episode.read(text, size)
                finally:
                    connection.request_read()
                del text
                step = await episode.ask(request)
                reply = {"step": write_step(step), "tools": list(episode.tools)}
                return await asyncio.to_thread(write_message, reply)
        except UserError as error:
            return await _error("user", str(error))
        except TimeoutError:
            return await _error("infrastructure", f"no step within {self._timeout:g} s")
        except Exception as error:  # of whatever the environment runs
            return await _error("infrastructure", f"{type(error).__name__}: {error}")


async def _error(kind: str, message: str) -> str:
    text = message[:_LONGEST_REASON].encode(errors="replace").decode()
    return await asyncio.to_thread(write_message, {"error": {"kind": kind, "message": text}})


class _Episode:
    """The environment of a session, made with its first task, and the room that task and request take."""

    def __init__(self, maker: EnvironmentMaker, offer: Offer, room: Room):
        self._maker, self._offer, self._room = maker, offer, room
        self._environment: Environment | None = None
        self._task_size = self._request_size = 0

    @property
    def tools(self) -> Any:
        return () if self._environment is None else self._environment.tools

    async def read(self, text: str, size: int) -> EnvironmentRequest:
        """The request in a text, which takes ``size`` bytes of the room until the next one comes."""
        self._room.give(self._request_size)
        self._request_size = size
        return await asyncio.to_thread(read_request, text)

    async def ask(self, request: EnvironmentRequest) -> Step:
        if request.task is not None:
            await self._close_environment()
            self._offer.check(request.task)
            self._task_size, self._request_size = self._request_size, 0
            self._environment = self._maker.make(request.task)
            return Step(await self._environment.reset(request.task, request.seed))
        if self._environment is None:
            raise UserError("an episode begins with a reset and goes on with steps")
        if request.collects:
            return Step(Observation(), truncated=True, info=await self._environment.collect())
        return await self._environment.step(request.action)

    async def close(self) -> None:
        await self._close_environment()
        self._room.give(self._request_size)
        self._request_size = 0

    async def _close_environment(self) -> None:
        environment, self._environment = self._environment, None
        try:
            if environment is not None:
                with contextlib.suppress(Exception):  # nobody is there who could be told
                    await environment.close()
        finally:
            self._room.give(self._task_size)
            self._task_size = 0


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
    limits = {"max_line_size": LARGEST_HEAD, "max_field_size": LARGEST_HEAD, "keepalive_timeout": HEAD_SECONDS}
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, **limits)
    connections = Connections(lambda: runner.server())
    application.router.add_get("/", functools.partial(server.handle, connections))
    await runner.setup()
    try:
        try:
            listening = await asyncio.get_running_loop().create_server(connections, host, port)
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
        shown = f"[{host}]" if ":" in host else host
        try:
            yield f"ws://{shown}:{listening.sockets[0].getsockname()[1]}"
        finally:
            listening.close()
            connections.abort()
    finally:
        await runner.cleanup()


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "Folder of the key.", **to)
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; another one lets other machines in.", **to)
    flags.DEFINE_integer("port", 8765, "Port to listen on; 0 takes a free one.", **to, lower_bound=0)
    flags.DEFINE_integer("sessions", 64, "Clients at a time.", **to, lower_bound=1)
    flags.DEFINE_float("timeout", 300.0, "Wall time of one reset or step [s].", **to, lower_bound=0.1)
    flags.DEFINE_integer("memory", 96, "Memory of all clients' tasks and replies [MiB].", **to, lower_bound=1)
    flags.DEFINE_string("sandbox", "bubblewrap", "Backend of sandboxes.", **to)
    flags.DEFINE_multi_string("environments", [], "An environment to offer, with its options; repeatable.", **to)
    flags.DEFINE_multi_string(
        "tools", [], "A toolset to offer, with its options as tasks write them; repeatable.", **to
    )
    text = "Most that a task may set of a limit, NAME=value, such as memory=2048 [MiB]; repeatable."
    flags.DEFINE_multi_string("limits", [], text, **to)
    flags.DEFINE_string("images", "", "Folder that clients may choose images from; empty refuses all.", **to)
    flags.DEFINE_string("repositories", "", "Folder that clients may choose git repositories from, the same.", **to)


def main(values: flags.FlagValues) -> None:
    """Runs the command until it is interrupted."""
    cli.require(values, "workdir")
    file = (Path(values.workdir) / KEY_FILE).absolute()
    maker = EnvironmentMaker(values.sandbox, images=values.images, repositories=values.repositories)
    offer = Offer([*values.environments, *(["repository"] if values.repositories else [])], values.tools, values.limits)
    limits = {"limit": values.sessions, "timeout": values.timeout, "memory": values.memory * MEBI}
    server = EnvironmentServer(maker, kept_key(file), offer, **limits)

    async def serve() -> None:
        async with serving(server, values.host, values.port) as url:
            print(f"environments at {url}", flush=True)
            listed = shlex.quote(shlex.quote(f"{url}={file}"))
            print(f"clients need {VARIABLE}={listed} (or a copy of that file)", flush=True)
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


def command() -> None:
    """Runs the command line."""
    cli.run(main, define, __doc__)
