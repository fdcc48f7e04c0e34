"""Collections of a few tasks with engines behind sockets in this process."""

import asyncio
import contextlib
import os
import signal

from k2jax.agents.collect.engine_socket import EngineServer
from k2jax.agents.collect.journal import stored_trajectory
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.trajectory import verify

BYTES = byte_tokenizer()


@contextlib.asynccontextmanager
async def served(clients, paths, **options):
    """A server for each client."""
    serving = [
        asyncio.ensure_future(EngineServer(client, **options).serve(path))
        for client, path in zip(clients, paths, strict=True)
    ]
    try:
        yield
    finally:
        for each in serving:
            each.cancel()


async def collected(folder, tasks, clients, samples, *, kill=0, tokenizer=BYTES, placed=None, manager=(), **options):
    """The trajectories in the order of keys, and the manager; a worker is killed after so many ends."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(folder / "tokenizer")
    write_tasks(folder, [("kind", task) for task in tasks])
    paths = [str(folder / f"engine{number}") for number in range(len(clients))]
    options = {"tokenizer": str(folder / "tokenizer"), "chat": "compact", "seed": 7, "engines": paths} | options
    runner = "k2jax.agents.collect.episodes:EpisodeRunner"
    sizes = {"workers": 1, "capacity": 20} | dict(manager)
    ended = []
    async with (
        served(clients, paths, media=placed),
        RolloutManager(folder, runner=runner, options=options, **sizes) as opened,
    ):
        async for emission in opened.collect(queued_samples(folder, samples)):
            ended.append(emission)
            if len(ended) == kill:
                os.kill(opened.worker_processes()[0], signal.SIGKILL)
    ended.sort(key=lambda each: each.key)
    assert [each.key for each in ended] == [(0, p, sample) for p in range(len(tasks)) for sample in range(samples)]
    stored = [stored_trajectory(folder, emission.place) for emission in ended]
    assert [each.key for each in stored] == [each.key for each in ended] and not any(map(verify, stored))
    return stored, opened
