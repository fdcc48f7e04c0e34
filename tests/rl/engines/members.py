"""Engines that join a pool without a model: their tokens count up, and their versions are what a test says."""

import asyncio
import contextlib
import dataclasses

from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_states import EngineState
from k2jax.agents.collect.run_member import RunMember
from k2jax.client import Client, new_completion
from k2jax.inference.stats import EngineStats
from k2jax.rl.engines.engine_pool import EnginePool

NO_COUNTS = dict.fromkeys((field.name for field in dataclasses.fields(EngineStats)), 0)


def digest_of(version):
    """The checksum of the weights of a version."""
    return f"digest {version}"


class CountingEngine(Client):
    """Gives the tokens 0, 1, 2, ... one after another; ``asked`` has the resumed tokens of every request.

    ``hold_at`` lets requests stand still before a token until ``go`` is set.
    """

    def __init__(self, name, version=0):
        self.name, self.version, self.digest, self.busy = name, version, None, 1.5
        self.asked, self.hold_at, self.go, self.holds = [], None, asyncio.Event(), asyncio.Event()
        self.member = RunMember(name, self, self.state, lambda: self.version)

    def state(self):
        return EngineState(self.version, self.digest or digest_of(self.version), self.busy, {**NO_COUNTS, "slots": 4})

    async def generate(self, prompt, sampling, *, resume=None, on_token=None, media=()):
        self.asked.append([] if resume is None else resume.tokens.tolist())
        tokens, versions = list(self.asked[-1]), [] if resume is None else resume.versions.tolist()
        while len(tokens) < sampling.max_tokens:
            if len(tokens) == self.hold_at:
                self.holds.set()
                await self.go.wait()
            await asyncio.sleep(0)
            tokens.append(len(tokens))
            versions.append(self.version)
            if on_token is not None and on_token(tokens[-1], -1.0):
                break
        finish = "length" if len(tokens) == sampling.max_tokens else "stop"
        return new_completion(tokens, [-1.0] * len(tokens), versions, finish, resume)

    def take(self, version):
        """The next weights, of which the run learns before any token."""
        self.version = version
        self.member.tell()


@contextlib.asynccontextmanager
async def opened(path, *, published=0):
    """A pool that listens, has published the versions from 0 to ``published``, and what it says."""
    said = []
    pool = EnginePool(64, 4, said.append, "start one")
    for version in range(published + 1):
        pool.publish(version, digest_of(version))
    await pool.open(path)
    await pool.watch()
    try:
        yield pool, said
    finally:
        await pool.close()


@contextlib.asynccontextmanager
async def joined(pool, path, *engines):
    """Engines that join the pool; ``kill`` of each ends it without a word."""
    there, serving = len(pool.engines), []
    for engine in engines:
        serving.append(asyncio.ensure_future(engine.member.serve(EngineAddress(str(path)))))
        engine.kill = serving[-1].cancel
    await until(lambda: len(pool.engines) == there + len(engines) and all(e.state for e in pool.engines.values()))
    try:
        yield serving
    finally:
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def until(condition):
    """Waits for a condition."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
