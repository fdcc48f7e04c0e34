"""An environment that another process serves, over a WebSocket: for environments that are heavy or need other packages.

One connection is one episode. Requests and replies are JSON: ``{"method": "reset", "task", "seed"}`` and ``{"method":
"step", "action"}``; a reply holds a step and the tools, or an error, which says whether the machine or the user is to
blame. Whatever goes wrong with the connection is an error of the infrastructure: the episode is rebuilt or masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import json
import math
from typing import Any

from k2jax.env.environment import Message, Observation, Step
from k2jax.env.errors import EnvironmentFailedError
from k2jax.env.task import Task
from k2jax.errors import UserError, abbreviate

REMOTE = "remote"
"""Key of a task's metadata: ``{"url", "environment", "timeout"}`` of the server."""
LARGEST_MESSAGE = 8 << 20
"""Bytes of a request or a reply."""
NO_AIOHTTP = "remote environments need the package aiohttp: pip install 'k2jax[remote]'"
"""What a user is told where the package is missing."""


def remote(task: Task, url: str, timeout: float = 300.0) -> Task:
    """The prompt component that puts a task's environment on a server.

    Args:
        task: whose environment the server makes by its name.
        url: of the server, ``ws://`` or ``wss://``.
        timeout: wall time of a request, from when it is sent [s].

    Raises:
        UserError: it is no such address, or the time is not positive.
    """
    if not url.startswith(("ws://", "wss://")) or not timeout > 0:
        raise UserError(
            f"remote: url is {abbreviate(url)}, timeout {timeout}; write ws://HOST:PORT and a positive time"
        )
    told = {"url": url, "environment": task.environment, "timeout": timeout}
    return dataclasses.replace(task, environment="remote", metadata={**task.metadata, REMOTE: told})


class RemoteEnvironment:
    """The environment of a task on the server that the task's metadata name.

    Attributes:
        tools: declarations of the task's tools, in OpenAI's format; known after ``reset``.
    """

    def __init__(self):
        """Connects to nothing."""
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._session: Any = None
        self._socket: Any = None
        self._timeout = 0.0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Connects, and begins an episode.

        Raises:
            UserError: the task names no server, or what the server says the user did wrong.
            EnvironmentFailedError: the server cannot be reached, is full, or failed.
        """
        await self.close()
        try:
            told = task.metadata[REMOTE]
            url, environment, self._timeout = str(told["url"]), str(told["environment"]), float(told["timeout"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the task {task.id!r} names no server; use the component 'remote url=ws://...'") from None
        await self._connect(url)
        inner = dataclasses.replace(task, environment=environment)
        step = await self._ask({"method": "reset", "task": inner.to_json(), "seed": seed})
        return step.observation

    async def step(self, action: Message) -> Step:
        """The server's step; raises as ``reset`` does."""
        return await self._ask({"method": "step", "action": dict(action)})

    async def close(self) -> None:
        """Ends the connection, and with it the episode on the server."""
        socket, session = self._socket, self._session
        self._socket = self._session = None
        if socket is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(socket.close(), 5.0)
        if session is not None:
            await session.close()

    async def _connect(self, url: str) -> None:
        try:
            import aiohttp
        except ImportError:
            raise UserError(NO_AIOHTTP) from None
        self._session = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(self._timeout):
                self._socket = await self._session.ws_connect(url, max_msg_size=LARGEST_MESSAGE, heartbeat=30.0)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # OSError: TimeoutError too
            await self.close()
            status = f" (status {error.status})" if isinstance(error, aiohttp.WSServerHandshakeError) else ""
            reason = "it is full" if status.endswith("503)") else f"{type(error).__name__}{status}"
            raise EnvironmentFailedError(f"no environment at {url}: {reason}") from None

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
        text = json.dumps(request)
        if len(text) > LARGEST_MESSAGE:
            raise EnvironmentFailedError(f"a request of {len(text):,} bytes is too long for a remote environment")
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
        return self._read(reply.data)

    def _read(self, text: str) -> Step:
        """A reply as a step; raises what it says, or EnvironmentFailedError where it is none."""
        try:
            reply = json.loads(text)
            if "error" in reply:
                kind, message = str(reply["error"]["kind"]), str(reply["error"]["message"])
            else:
                self.tools = [dict(tool) for tool in reply["tools"]]
                return read_step(reply["step"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EnvironmentFailedError(f"the environment's reply is none: {abbreviate(str(error))}") from None
        if kind == "user":
            raise UserError(message)
        raise EnvironmentFailedError(f"the environment failed on its server: {abbreviate(message, 300)}")


def write_step(step: Step) -> dict[str, Any]:
    """A step as JSON; ``read_step`` is the inverse."""
    messages = [dict(message) for message in step.observation.messages]
    return {**step._asdict(), "observation": messages, "info": dict(step.info)}


def read_step(value: Mapping[str, Any]) -> Step:
    """A step from JSON.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    messages = tuple(value["observation"])
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise ValueError("an observation that holds something else than messages")
    reward = float(value["reward"])
    if not math.isfinite(reward) or not isinstance(value["info"], dict):
        raise ValueError("a reward that is not finite, or an info that is no object")
    return Step(Observation(messages), reward, value["terminated"] is True, value["truncated"] is True, value["info"])
