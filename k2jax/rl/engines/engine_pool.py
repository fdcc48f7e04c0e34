"""All engines of a run as one client: they join, take each version of the weights, and may leave at any time.

An engine opens a connection, says who it is, and from then on which weights it has. It is asked for tokens while these
are what the run has published: number and checksum of every version are compared, so that no token comes from weights
that the trainer does not know. What a lost engine was asked for is asked of another one, behind the tokens that were
handed on already, if there are any. Where there is no engine, requests wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
import contextlib
import dataclasses
from pathlib import Path
import socket
import time
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_requests import EngineLostError
from k2jax.agents.collect.engine_socket import AcceptedConnection
from k2jax.agents.collect.engine_states import EngineJoin, EngineRole, EngineState
from k2jax.agents.collect.instances import RoleLoad
from k2jax.agents.collect.routing import RoleShares, RoutedClient, Router, SubagentClient
from k2jax.agents.collect.wire import FrameConnection, other_version
from k2jax.agents.collect.wire_messages import EngineMessage
from k2jax.client import Client, Completion, OnToken, Sampling
from k2jax.errors import InfrastructureError
from k2jax.inference import ContinuousClient
from k2jax.inference.stats import EngineStats
from k2jax.rl.engines.joined_engine import JoinedEngine
from k2jax.rl.sync.weight_sync import StaleWeightsError
from k2jax.trajectory.steps import POLICY

WATCH = 0.25
"""Time between two looks at engines that are silent, and at the processes that the run has started [s]."""
SILENT_SECONDS = 60.0
"""Time after which an engine that says nothing is taken to be lost [s]."""
WAIT_SECONDS = 10.0
"""Time without an engine after which the run says that it waits [s]."""
_STATES = ("slots", "running", "waiting", "paused", "pages", "pages_in_use", "pages_cached")
_GROWING = [field.name for field in dataclasses.fields(EngineStats) if field.name not in _STATES]


class EnginePool(RoutedClient):
    """Generates with whatever engines there are; every method but ``publish`` is called on one event loop.

    Args:
        longest: longest sequence of every engine [tokens].
        slots: of every engine.
        say: prints a line.
        advice: what a user does who wants another engine.
        role: that the engines answer as.

    Attributes:
        engines: those that are there, by their numbers.
        needed: least version of the weights that a request may go to; None is any.
        version: of the weights that were published last; None before the first.
        subagents: the same engines for sub-agents, see ``RoleShares``.
        watched: called now and then, see ``own_engines``.
        noticed: called when an engine has other weights, is gone, or may be asked for less.
        beside: pools of other roles, by name, whose engines join where this one's do.
    """

    def __init__(self, longest: int, slots: int, say: Callable[[str], None], advice: str, role: str = POLICY):
        self._longest, self._slots, self._say, self._advice, self._role = longest, slots, say, advice, role
        self._router, self._shares = Router(0), RoleShares(0)
        self.engines: dict[int, JoinedEngine] = {}
        self.needed: int | None = None
        self.version: int | None = None
        self.subagents: Client = SubagentClient(self)
        self.watched: Callable[[], None] = lambda: None
        self.noticed: Callable[[], None] = lambda: None
        self.beside: dict[str, EnginePool] = {}
        self._published: dict[int, str] = {}
        self._servers: list[asyncio.Server] = []
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._left: Counter[str] = Counter()  # counts of engines that are gone
        self._lost = self._waiting = self._sampled = 0
        self._busy, self._without, self._has_said = 0.0, time.monotonic(), False

    # --- engines that come and go -----------------------------------------------------------------------------------

    def publish(self, version: int, digest: str) -> None:
        """Weights of this number and checksum are about to be published; may be called from any thread."""
        self._published[version], self.version = digest, version

    async def open(self, path: Path, listener: socket.socket | None = None, key: str = "") -> None:
        """Lets engines join: those of this machine on a Unix socket, others on a socket that listens, with a key."""
        loop = asyncio.get_running_loop()
        self._servers = [await loop.create_unix_server(lambda: self._arrive(""), str(path), backlog=512)]
        if listener is not None:
            self._servers.append(await loop.create_server(lambda: self._arrive(key), sock=listener))

    async def watch(self) -> None:
        """Begins to look after the engines."""
        self._watching = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """Tells all engines that the run has ended."""
        if self._watching is not None:
            self._watching.cancel()
        for server in self._servers:
            server.close()
        engines, self.engines = self.engines, {}
        for engine in engines.values():
            engine.connection.send(EngineMessage.RUN_ENDED)
            engine.connection.close()

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error."""
        self._error = self._error or error
        self._notify()

    def give_away(self, engine: JoinedEngine, role: EngineRole) -> None:
        """Asks an engine for nothing more; it answers as another role when it has answered what it was asked for."""
        engine.next_role = role
        engine.move_on()

    def load(self) -> RoleLoad:
        """What the engines do now; what waits is counted in the slots of an engine."""
        counts = [engine.state.counts for engine in self.engines.values() if engine.state is not None]
        running, waiting = (sum(each[name] for each in counts) for name in ("running", "waiting"))
        busy = running / (self._slots * max(1, len(counts)))
        return RoleLoad(len(counts), min(1.0, busy), (waiting + self._waiting) / self._slots)

    def check(self) -> None:
        """Raises what has ended the run, if anything has."""
        if self._error is not None:
            raise self._error

    def _arrive(self, key: str) -> FrameConnection:
        joined: list[JoinedEngine] = []
        pools: list[EnginePool | None] = []

        def on_frame(kind: int, body: bytes) -> None:
            if joined:
                pools[0]._on_frame(joined[0], kind, body)
            elif kind == EngineMessage.JOIN and not pools:
                join = EngineJoin.unpack(body)
                pools.append(self if join.role == self._role else self.beside.get(join.role))
                if pools[0] is None:  # of an earlier start with other roles
                    accepted.connection.send(EngineMessage.BECOME, EngineRole(self._role).pack())
                else:
                    joined.append(pools[0]._join(accepted.connection, join.name))

        def on_end() -> None:
            if joined:
                pools[0]._drop(joined[0], "has left")

        def on_other_version(version: int) -> None:
            self._say(other_version("an engine that wants to join", version))

        accepted = AcceptedConnection(key, lambda: None, on_frame, on_end, on_other_version)
        return accepted.connection

    def _join(self, connection: FrameConnection, name: str) -> JoinedEngine:
        engine = JoinedEngine(connection, name, self._router.add())
        self.engines[engine.number] = engine
        self._shares.resize(len(self.engines))
        self._has_said = False
        self._say(f"the engine {name} has joined: {self._count()}")
        return engine

    def _on_frame(self, engine: JoinedEngine, kind: int, body: bytes) -> None:
        if kind != EngineMessage.STATE:
            engine.answered(engine.connection, kind, body)
            return
        before, state, version = engine.state, EngineState.unpack(body), engine.version
        engine.take(state, self._published)
        since = state if before is None else before
        self._busy += (state.busy_seconds - since.busy_seconds) / max(1, len(self.engines))
        if engine.version != version:
            self._notify()

    def _drop(self, engine: JoinedEngine, what: str) -> None:
        """Forgets an engine; whoever waits for one of its answers asks another one."""
        if self.engines.pop(engine.number, None) is None:
            return
        if engine.state is not None:
            self._left.update({name: engine.state.counts[name] for name in _GROWING})
        self._lost += engine.next_role is None
        self._router.forget(engine.number)
        self._shares.resize(len(self.engines))
        self._without = time.monotonic()
        engine.leave()
        if engine.next_role is not None:
            what = f"goes, to answer as {engine.next_role.role}"
        self._say(f"the engine {engine.name} {what}: {self._count()}")
        self._notify()

    def _count(self) -> str:
        of = "the run" if self._role == POLICY and not self.beside else self._role
        return f"{len(self.engines)} {'engine' if len(self.engines) == 1 else 'engines'} of {of}"

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH)
            self.watched()
            now = time.monotonic()
            for engine in list(self.engines.values()):
                engine.move_on()
                if now - engine.heard > SILENT_SECONDS:
                    self._drop(engine, f"has said nothing for {SILENT_SECONDS:.0f} s")
            if not (self.engines or self._has_said) and self._waiting and now - self._without > WAIT_SECONDS:
                self._has_said = True
                role = f" of the role {self._role}" if self._role != POLICY else ""
                self._say(f"no engine{role} is there, and the run waits for one: {self._advice}")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.noticed()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def need(self, version: int | None) -> None:
        """From now on requests go to engines that have at least this version of the weights."""
        self.needed = version
        self._notify()

    def sampled_by(self) -> int | None:
        """The least version of the weights by which a token is sampled that is asked for now; None is any."""
        return min((each.version for each in self.engines.values() if self._is_able(each)), default=self.needed)

    async def longest_sequence(self) -> int:
        """See ``Client.longest_sequence``."""
        return self._longest

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``."""
        return await self.asked(0, prompt, self._generation(prompt, sampling, resume, on_token, media))

    async def asked(self, role: int, prompt: Sequence[int], ask: Callable[[Client], Awaitable[Any]]) -> Any:
        """See ``RoutedClient``; ``ask`` is called again where the engine is lost."""
        prompt_P = np.asarray(prompt, np.int32)
        self._shares.begun(role)
        try:
            while True:
                engine = await self._chosen(role, prompt_P)
                sequence = None
                try:
                    answer = await ask(engine)
                    whole = isinstance(answer, Completion)
                    sequence = np.concatenate([prompt_P, answer.tokens]) if whole else prompt_P
                    return answer
                except EngineLostError:
                    self._drop(engine, "is lost")
                finally:
                    self._router.done(engine.number, sequence)
        finally:
            self._shares.ended(role)

    async def _chosen(self, role: int, prompt_P: np.ndarray) -> JoinedEngine:
        """An engine that has what is needed, once there is one."""
        self._waiting += 1
        try:
            while True:
                self.check()
                there = sorted(self.engines)
                able = [number for number in there if self._is_able(self.engines[number])]
                own = self._shares.of(role, there)
                among = [number for number in able if number in own] or able
                if among:
                    return self.engines[self._router.choose(prompt_P, among)[0]]
                await self._changed.wait()
        finally:
            self._waiting -= 1

    def _is_able(self, engine: JoinedEngine) -> bool:
        if engine.version is None or engine.next_role is not None:
            return False
        return self.needed is None or engine.version >= self.needed

    def _generation(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        resume: Completion | None,
        on_token: OnToken | None,
        media: Sequence[Any],
    ) -> Callable[[JoinedEngine], Awaitable[Completion]]:
        """What asks one engine after another for a completion, each behind the tokens that were handed on."""

        async def ask(engine: JoinedEngine) -> Completion:
            nonlocal resume
            begun = 0 if resume is None else len(resume.tokens)
            try:
                completion = await engine.generate(prompt, sampling, resume=resume, on_token=on_token, media=media)
            except EngineLostError as error:
                if error.reported is None:
                    raise
                self._check_versions(engine, error.reported.versions[begun:])
                if error.reported.finish != "stop":
                    resume = error.reported
                    raise
                if sampling.return_experts:  # which the lost engine alone knew
                    raise InfrastructureError("an engine was lost at the end of its answer") from error
                return error.reported
            self._check_versions(engine, completion.versions[begun:])
            return completion

        return ask

    def _check_versions(self, engine: JoinedEngine, versions_T: np.ndarray) -> None:
        unknown = set(versions_T.tolist()) - engine.versions
        if unknown:
            error = StaleWeightsError(
                f"the engine {engine.name} has sampled with weights of version {min(unknown)}, which it was not known "
                "to have"
            )
            self.fail(error)
            raise error
        self._sampled += len(versions_T)

    # --- what the sampler asks of its client, see ``ContinuousClient`` ------------------------------------------------

    @property
    def busy_seconds(self) -> float:
        """Time for which an engine has stepped so far, in the mean over those that were there [s]."""
        return self._busy

    def stats(self) -> EngineStats:
        """Counters of all engines, and of those that are gone what only grows; ``slots`` are those of one engine.

        Tokens are those that have arrived.
        """
        states = [engine.state.counts for engine in list(self.engines.values()) if engine.state is not None]
        totals = Counter(self._left)
        for counts in states:
            totals.update(counts)
        counted = {name: totals[name] for name in (*_STATES, *_GROWING)}
        return EngineStats(**counted | {"slots": self._slots, "tokens_generated": self._sampled})

    def record(self) -> dict[str, float]:
        """Metrics: the number of engines, versions by which they are behind in the mean, and how many were lost."""
        there = [engine.version for engine in list(self.engines.values()) if engine.version is not None]
        lost, self._lost = self._lost, 0
        record = {"engines": float(len(self.engines)), "engines/lost": float(lost)}
        return record | ({"engines/behind": float(np.mean([self.version - each for each in there]))} if there else {})

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """See ``ContinuousClient``; engines of their own always may."""
        yield

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """See ``ContinuousClient``."""
        return await ContinuousClient.gather(self, *coroutines)

    def stop(self) -> None:
        """See ``close``, which ends what there is."""
