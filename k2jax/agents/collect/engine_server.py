"""A client's engine for other processes: it listens on a Unix socket and answers each connection's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from k2jax.agents.collect.engine_messages import EngineLoad, EngineSaid, pack_completion, pack_error, unpack_request
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import NUMBER
from k2jax.client import Client
from k2jax.errors import InfrastructureError, UserError


class EngineServer:
    """Serves a client to other processes.

    Args:
        client: generates.
        load: says how busy the engine is; it is told to every connection each ``interval``.
        interval: between two such messages [s].
    """

    def __init__(self, client: Client, load: Callable[[], EngineLoad] | None = None, interval: float = 0.5):
        self._client, self._load, self._interval = client, load, interval
        self._connections: set[_Served] = set()
        self.requests = 0

    async def serve(self, path: str | Path, ready: Callable[[], None] = lambda: None) -> None:
        """Listens until it is cancelled."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self._connected, str(path), backlog=512)
        ready()
        async with server:
            while True:
                await asyncio.sleep(self._interval)
                if self._load is not None:
                    told = self._load().pack()
                    for served in self._connections:
                        served.connection.send(EngineSaid.PRESSURE, told)

    def _connected(self) -> FrameConnection:
        served = _Served(self._client, self)
        self._connections.add(served)
        return served.connection

    def forget(self, served: _Served) -> None:
        """A connection has ended."""
        self._connections.discard(served)


class _Served:
    """One connection: its requests are coroutines, which end with it."""

    def __init__(self, client: Client, server: EngineServer):
        self._client, self._server = client, server
        self._running: dict[int, asyncio.Task[None]] = {}
        self.connection = FrameConnection(self._on_frame, self._on_end)

    def _on_frame(self, kind: int, body: bytes) -> None:
        (number,) = NUMBER.unpack_from(body)
        if kind == EngineSaid.REQUEST:
            self._server.requests += 1
            answering = asyncio.ensure_future(self._answer(body))
            self._running[number] = answering
            answering.add_done_callback(lambda _: self._running.pop(number))
        elif kind == EngineSaid.CANCEL and number in self._running:
            self._running[number].cancel()

    async def _answer(self, body: bytes) -> None:
        number, prompt, sampling, resume = unpack_request(body)
        del body  # tens of thousands of requests wait here
        try:
            completion = await self._client.generate(prompt.tolist(), sampling, resume=resume)
            self.connection.send(EngineSaid.COMPLETION, pack_completion(number, completion))
        except (UserError, InfrastructureError, RuntimeError) as error:
            self.connection.send(EngineSaid.ERROR, pack_error(number, error))

    def _on_end(self) -> None:
        self._server.forget(self)
        for answering in list(self._running.values()):
            answering.cancel()
