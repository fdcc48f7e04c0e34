"""The sampler of runs whose episodes wait for tools, agents and verifiers; see ``Sampler``.

The engine steps whenever it has work. An iteration ends when ``rl.rollout.prompts`` groups are complete; the episodes
that are under way then keep their environments and their places, and their next tokens come from the next weights.
What is trained on depends on which groups end first, and is stored before the first update; of groups that are complete
no death of the process loses one.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
import contextlib
import time
from typing import Any, NamedTuple

from k2jax.agents.collect.event_loop import LagProbe
from k2jax.agents.collect.pauses import Pauses, least_patience
from k2jax.inference import ContinuousClient
from k2jax.inference.engine import Engine
from k2jax.inference.stats import EngineStats
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.failures import FailureGuard
from k2jax.rl.followers.commands import ALONE, Commands
from k2jax.rl.groups import PromptGroup, class_of, note_terms, reward_terms
from k2jax.rl.iteration_metrics import busy_record, engine_record, iteration_record, staleness_record
from k2jax.rl.methods.base import Methods
from k2jax.rl.retention import VerdictRetention
from k2jax.rl.schedules import reward_weights
from k2jax.rl.sync.offload import offloaded
from k2jax.rl.workers.group_log import GroupLog
from k2jax.rl.workers.rollouts import Batch, Rollouts
from k2jax.rl.workers.tracing import IterationTrace
from k2jax.rl.workers.window import DrawWindow
from k2jax.rl.workers.window_metrics import batch_record, lag_record
from k2jax.rl.workers.worker_episodes import WorkerEpisodes
from k2jax.train.run import Run, say
from k2jax.trajectory.steps import POLICY
from k2jax.trajectory.store import TrajectoryStore


class _Mark(NamedTuple):
    """A moment, and what engines had done by then."""

    seconds: float
    stats: EngineStats
    busy: dict[str, float]


class WorkerSampler:
    """See the module's text.

    Args:
        run: the run.
        engine: of the policy, on the trainer's devices; None where engines have processes of their own.
        clients: over the engines of all roles, the policy's first.
        event_loop: on which the episodes run.
        probe: of the event loop.
        trace: of one iteration.
        rollouts: runs them.
        window: of the prompts.
        log: of complete groups.
        methods: of the run.
        episodes: of any purpose.
        commands: of the run's processes.
    """

    def __init__(
        self,
        run: Run,
        engine: Engine | None,
        clients: Mapping[str, ContinuousClient | EnginePool],
        event_loop: EventLoop,
        *,
        probe: LagProbe,
        trace: IterationTrace,
        rollouts: Rollouts,
        window: DrawWindow,
        log: GroupLog,
        methods: Methods,
        episodes: WorkerEpisodes,
        commands: Commands = ALONE,
    ):
        self._run, self._config, self._engine = run, run.config, engine
        self._clients, self._client = clients, clients[POLICY]
        self._event_loop, self._rollouts, self._window = event_loop, rollouts, window
        self._probe, self._trace = probe, trace
        self._methods, self.episodes, self._commands = methods, episodes, commands
        self._store = TrajectoryStore(run.workdir / "trajectories", keep=run.config.rl.keep_trajectories)
        self._retention = VerdictRetention(log, run.workdir)
        self._pauses = Pauses(least_patience(run.config), say)
        self._failures, self._record = FailureGuard(run.note), {}
        self._pool = self._client if isinstance(self._client, EnginePool) else None
        self._last: _Mark | None = None

    def begin(self, step: int) -> None:
        """See ``Sampler``."""
        if step == 0:  # an earlier start may have completed groups, though it came to no checkpoint
            self._event_loop.run(_called(self._rollouts.restore, 0, ()))
        self._retention.note(step, self._began())

    def groups(self, step: int) -> Iterator[PromptGroup]:
        """See ``Sampler``."""
        self._batch = self._generating(self._collected(step))
        return iter(self._batch.groups)

    def collect(self, step: int) -> list[PromptGroup]:
        """See ``Sampler``.

        Raises:
            UserError: nothing that counts is left of several iterations.
        """
        self._event_loop.run(self._trace.begin(step))
        asked = self._mark()
        # Engines of their own generate between two batches, too.
        since = asked if self._pool is None else self._last or asked
        groups = list(self.groups(step))
        now = self._last = self._mark()
        seconds = now.seconds - since.seconds
        if self._config.rl.rollout.offload_state:
            self._engine.release()
            for engine in self._frozen():
                engine.release(weights=False)
        sampled = now.stats.tokens_generated - since.stats.tokens_generated
        self._record = iteration_record(self._config, groups, sampled, seconds) | engine_record(since.stats, now.stats)
        self._record |= staleness_record(groups, step - 1)
        self._record |= busy_record(since.busy, now.busy, seconds)
        if self._pool is None:
            self._record["pause_seconds"] = self._pauses.longest()
        else:
            busy = min(1.0, self._record["engine_busy"])  # a step counts when it ends, and may have begun long before
            self._record |= {"engine_busy": busy, "trainer_wait_seconds": now.seconds - asked.seconds}
            self._record |= self._pool.record()
        self._record |= batch_record(self._batch, self._rollouts.running) | lag_record(self._lag)
        self.store(step, groups)
        self._failures.check(step, groups)
        return groups

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """See ``Sampler``; episodes of the window that are under way go on meanwhile, and no others begin.

        What is sampled is the trainer's weights' of this moment.
        """
        self._rollouts.begins = False
        try:
            return self._generating(self._sampled_by_newest(coroutine))
        finally:
            self._rollouts.begins = True

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """See ``Sampler``."""
        return self._trace.phase(name)

    def store(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """See ``Sampler``."""
        self._store.write(step, [trajectory for group in groups for trajectory in group.trajectories])

    def record(self) -> dict[str, Any]:
        """See ``Sampler``; ``window_metrics.batch_record`` has what this sampler adds."""
        return self._record

    def saved(self, step: int) -> None:
        """See ``Sampler``; complete groups that every checkpoint has counted are deleted."""
        self._retention.note(step, self._began())
        if step % self._config.checkpoint.every == 0:
            self._retention.tidy()
        self._event_loop.run(self._trace.end(step))

    def extra(self) -> dict[str, Any]:
        """See ``Sampler``: the number of prompts drawn, and those that are not trained on yet."""
        return {"window": {"drawn": self._window.drawn, "open": sorted(self._window.open)}}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """See ``Sampler``."""
        window = extra["window"]
        self._event_loop.run(_called(self._rollouts.restore, window["drawn"], window["open"]))

    async def close(self) -> None:
        """Ends the episodes that are under way."""
        await self._rollouts.close()

    def _generating(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with offloaded(self._run, self._frozen()):
            return self._commands.issue_while(lambda: self._generated(coroutine))

    def _generated(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with contextlib.ExitStack() as phases, contextlib.ExitStack() as generating:
            if self._pool is None:
                generating.enter_context(self._pauses.generation())
            for client in self._clients.values():
                generating.enter_context(client.generating())
            with self._trace.phase("generate"):
                result = self._event_loop.run(coroutine)
            phases.enter_context(self._trace.phase("hold"))
        return result

    def _frozen(self) -> list[Engine]:
        """Engines on the trainer's devices of the roles beside the policy's, which is the first."""
        return [] if self._pool is not None else [client.engine for client in list(self._clients.values())[1:]]

    def _mark(self) -> _Mark:
        busy = {role: client.busy_seconds for role, client in self._clients.items()}
        return _Mark(time.perf_counter(), self._client.stats(), busy)

    async def _sampled_by_newest(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._pool is None:
            return await coroutine
        before = self._pool.needed
        await self._pool.need(self._pool.version)
        try:
            return await coroutine
        except Exception:
            self._pool.check()  # first: what has ended the engines says more than what it led to
            raise
        finally:
            await self._pool.need(before)

    async def _need_for(self, version: int) -> None:
        """Tokens are sampled that an update of the weights of a version may take at the earliest."""
        if self._pool is not None:
            most_stale = self._config.rl.max_staleness
            await self._pool.need(None if most_stale is None else version - most_stale)

    async def _collected(self, step: int) -> Batch:
        await self._need_for(step - 1)
        batch = await self._rollouts.batch(step)
        self._lag = self._probe.lap()
        groups, methods, rl = batch.groups, self._methods, self._config.rl
        await methods.rewards(step, groups, scope="iteration")
        more = [
            PromptGroup(-1, (step, rl.rollout.prompts + place), prompt, [None] * rl.rollout.samples)
            for place, prompt in enumerate(methods.prompts(step, groups))
        ]
        if more:
            await self.episodes.run(step, more)
            groups += more
        for group in groups:
            task = class_of(rl, group)
            group.terms = reward_terms(group, task, reward_weights(task, step - 1, self._config.train.steps))
        await methods.rewards(step, groups, scope="group")
        for group in groups:
            note_terms(group)
        await self._need_for(step)
        return batch

    def _began(self) -> int:
        """The iteration to which the oldest prompt belongs that is not trained on yet."""
        return self._rollouts.place(self._window.oldest)[0]


async def _called(function, *arguments) -> Any:
    return function(*arguments)
