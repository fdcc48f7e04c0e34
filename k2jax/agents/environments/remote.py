"""An environment that another process serves, over a WebSocket: for environments that are heavy or need other packages.

One connection is one episode. Requests and replies are JSON: ``{"method": "reset", "task", "seed"}``, ``{"method":
"step", "action"}``, and ``{"method": "collect"}`` where a budget has ended the episode. A reply holds a step and the
tools, or an error, which says whether the machine or the user is to blame. Whatever goes wrong with the connection is
an error of the infrastructure: the episode is rebuilt or masked.

Only servers that the user has listed are connected to, each with its own key; see ``remote_servers``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
import contextlib
import dataclasses
from typing import Any

from k2jax.agents.environment import NO_SERVICES, Environment, Message, Observation, Services, Step
from k2jax.agents.environments.remote_messages import (
    LARGEST_MESSAGE,
    PROTOCOL,
    other_protocol,
    read_object,
    read_step,
    read_tools,
    write_message,
)
from k2jax.agents.environments.remote_servers import is_server_url, server_key
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError, UserError, abbreviate

REMOTE = "remote"
"""Key of a task's metadata: ``{"url", "environment", "timeout"}`` of the server."""
_LONGEST = 7 * 86400.0  # time of a request [s]
NO_AIOHTTP = "remote environments need the package aiohttp: pip install 'k2jax[remote]'"
"""What a user is told where the package is missing."""


def remote(task: Task, url: str, timeout: float = 300.0) -> Task:
    """The prompt component that puts a task's environment on a server.

    Args:
        task: whose environment the server makes by its name.
        url: of the server, ``ws://`` or ``wss://``, as the user has listed it.
        timeout: wall time of a request, from when it is sent [s].

    Raises:
        UserError: it is no such address, is not listed, or the time is not positive.
    """
    if not is_server_url(url) or not 0 < timeout <= _LONGEST:
        raise UserError(
            f"remote: url is {abbreviate(url)}, timeout {timeout}; write ws://HOST:PORT and a positive time"
        )
    server_key(url)  # said before the run begins
    told = {"url": url, "environment": task.environment, "timeout": timeout}
    return dataclasses.replace(task, environment="remote", metadata={**task.metadata, REMOTE: told})


class RemoteEnvironment(Environment):
    """The environment of a task on the server that the task's metadata name."""

    def __init__(self, services: Services = NO_SERVICES):
        """Connects to nothing."""
        super().__init__(services)
        self._session: Any = None
        self._socket: Any = None
        self._timeout = 0.0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Connects, and begins an episode.

        Raises:
            UserError: the task names no server, or one that is not listed or needs another key; or what the server says
                the user did wrong.
            EnvironmentFailedError: the server cannot be reached, is full, or failed.
        """
        await self.close()
        try:
            told = task.metadata[REMOTE]
            url, environment, self._timeout = str(told["url"]), str(told["environment"]), float(told["timeout"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the task {task.id!r} names no server; use the component 'remote url=ws://...'") from None
        if not 0 < self._timeout <= _LONGEST:
            raise UserError(f"the task {task.id!r} gives its server {self._timeout:g} s for a request")
        await self._connect(url, server_key(url))
        inner = dataclasses.replace(task, environment=environment)
        step = await self._ask({"method": "reset", "task": inner.to_json(), "seed": seed})
        return step.observation

    async def step(self, action: Message) -> Step:
        """The server's step; raises as ``reset`` does."""
        return await self._ask({"method": "step", "action": dict(action)})

    async def collect(self) -> Mapping[str, Any]:
        """See ``Environment.collect``; raises as ``reset`` does."""
        return (await self._ask({"method": "collect"})).info

    async def close(self) -> None:
        """Ends the connection, and with it the episode on the server."""
        socket, session = self._socket, self._session
        self._socket = self._session = None
        if socket is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(socket.close(), 5.0)
        if session is not None:
            await session.close()

    async def _connect(self, url: str, key: str) -> None:
        try:
            import aiohttp
        except ImportError:
            raise UserError(NO_AIOHTTP) from None
        watch = aiohttp.TraceConfig()
        watch.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(trace_configs=[watch])
        options = {"headers": {"Authorization": f"Bearer {key}"}, "max_msg_size": LARGEST_MESSAGE, "heartbeat": 30.0}
        options["protocols"] = (PROTOCOL,)
        try:
            async with asyncio.timeout(self._timeout):
                self._socket = await self._session.ws_connect(url, **options)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # OSError: TimeoutError too
            await self.close()
            status = error.status if isinstance(error, aiohttp.WSServerHandshakeError) else 0
            if status == 401:
                raise UserError(f"the environments at {url} need another key than the one that is listed") from None
            if status == 426:
                raise UserError(other_protocol(f"the server of environments at {url}")) from None
            reason = "it is full" if status == 503 else f"{type(error).__name__}{f' (status {status})' * bool(status)}"
            raise EnvironmentFailedError(f"no environment at {url}: {reason}") from None
        if self._socket.protocol != PROTOCOL:  # a server that knows of no versions
            await self.close()
            raise UserError(other_protocol(f"the server of environments at {url}"))

    async def _ask(self, request: Mapping[str, Any]) -> Step:
        """The reply to a request; after a failure the connection is closed, because its state is unknown."""
        try:
            return await self._asked(request)
        except EnvironmentFailedError:
            await self.close()
            raise

    async def _asked(self, request: Mapping[str, Any]) -> Step:
        import aiohttp

        if self._socket is None:
            raise EnvironmentFailedError("the connection to the environment is closed")
        try:
            text = await asyncio.to_thread(write_message, request)
        except (ValueError, InfrastructureError) as error:
            raise EnvironmentFailedError(f"a request cannot be sent: {abbreviate(str(error))}") from None
        try:
            async with asyncio.timeout(self._timeout):
                await self._socket.send_str(text)
                reply = await self._socket.receive()
        except TimeoutError:
            raise EnvironmentFailedError(f"the environment gave no reply within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EnvironmentFailedError(f"the connection to the environment broke: {error}") from None
        if reply.type is not aiohttp.WSMsgType.TEXT:
            reason = f"{reply.type.name.lower()} {reply.extra or ''}".strip()
            raise EnvironmentFailedError(f"the connection to the environment ended ({abbreviate(reason)})")
        return await self._read(reply.data)

    async def _read(self, text: str) -> Step:
        """A reply as a step; raises what it says, or EnvironmentFailedError where it is none."""
        try:
            reply = await asyncio.to_thread(read_object, text)
            if "error" in reply:
                kind, message = str(reply["error"]["kind"]), str(reply["error"]["message"])
            else:
                self.tools = read_tools(reply["tools"])
                return read_step(reply["step"])
        except (ValueError, TypeError, KeyError) as error:
            raise EnvironmentFailedError(f"the environment's reply is none: {abbreviate(str(error))}") from None
        if kind == "user":
            raise UserError(f"the environment's server says: {abbreviate(message, 300)}")
        raise EnvironmentFailedError(f"the environment failed on its server: {abbreviate(message, 300)}")


async def _refuse_redirect(*event: Any) -> None:
    """A server that is listed must not lead to one that is not."""
    raise OSError("it redirects")
