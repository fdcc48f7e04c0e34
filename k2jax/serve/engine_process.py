"""An engine in a process of its own, for the workers of a collection; see ``collect.engine_start``.

The first line of its standard input is a record in JSON: the ``socket`` to listen on, or the number of a ``listener``
that it inherits and the ``key`` that workers show there, and either ``simulation`` (fields of ``Simulation``) with the
folder of a ``tokenizer``, or a ``checkpoint`` with the sizes of an engine. It ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import json
import os
import socket
import sys
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_socket import EngineServer
from k2jax.agents.collect.event_loop import calm_collector, run
from k2jax.agents.collect.simulated import SimulatedEngine, Simulation
from k2jax.agents.collect.wire_messages import EngineLoad
from k2jax.client import Client, Completion, Sampling
from k2jax.errors import UserError
from k2jax.text.tokenizer import load_tokenizer


def open_client(record: dict[str, Any]) -> tuple[Client, Any]:
    """The client that the record describes, and a function that says how busy its engine is.

    Raises:
        UserError: the checkpoint cannot be read, or its engine cannot be made.
    """
    if "simulation" in record:
        engine = SimulatedEngine(load_tokenizer(record["tokenizer"]), Simulation(**record["simulation"]))
        return engine, engine.load
    from k2jax import runtime

    runtime.prepare()
    from k2jax.inference import Worker
    from k2jax.inference.client import EngineClient
    from k2jax.inference.loading import load_engine

    sizes = {name: record[name] for name in ("slots", "max_length")}
    worker = Worker(load_engine(record["checkpoint"], vision=record.get("vision", False), **sizes))

    def load() -> EngineLoad:
        stats = worker.stats()
        return EngineLoad(stats.pages_in_use / max(1, stats.pages), stats.running, stats.waiting, stats.preemptions)

    client = EngineClient(worker)
    return AloneClient(client, worker) if record.get("deterministic") else client, load


class AloneClient(Client):
    """One request at a time, with an empty cache: what it comes to does not depend on what came before or beside it.

    Args:
        client: over the worker.
        worker: of the engine.
    """

    def __init__(self, client: Client, worker: Any):
        self._client, self._worker = client, worker
        self._alone = asyncio.Lock()

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **options: Any) -> Completion:
        """Generates after a prompt; see ``Client.generate``."""
        async with self._alone:
            await asyncio.to_thread(self._worker.call, lambda engine: engine.drop_prefixes())
            return await self._client.generate(prompt, sampling, **options)

    async def longest_sequence(self) -> int | None:
        """See ``Client.longest_sequence``."""
        return await self._client.longest_sequence()

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities of given tokens; see ``Client.score``."""
        async with self._alone:
            await asyncio.to_thread(self._worker.call, lambda engine: engine.drop_prefixes())
            return await self._client.score(ids, start, media)


async def serve(record: dict[str, Any]) -> None:
    """Serves until standard input closes."""
    client, load = open_client(record)
    media = None
    if record.get("vision"):
        from k2jax.inference.media import placed_chunk as media
    server = EngineServer(client, load, media=media, key=record.get("key", ""))
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: None if os.read(0, 1) else closed.set())
    calm_collector()
    serving = asyncio.ensure_future(server.serve(_place(record)))
    ending = asyncio.ensure_future(closed.wait())
    await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    serving.cancel()


def _place(record: dict[str, Any]) -> str | socket.socket:
    return record["socket"] if "socket" in record else socket.socket(fileno=record["listener"])


def main() -> None:
    """Serves the engine of the record."""
    try:
        run(serve(json.loads(sys.stdin.buffer.readline())))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        os._exit(2)
    os._exit(0)


if __name__ == "__main__":
    main()
