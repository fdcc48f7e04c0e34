"""The sampler whose engine steps when every episode waits for it.

What an iteration samples is a function of the weights, the step and the responses that wait to
continue, so that a run that is killed and resumed samples the same tokens.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
import contextlib
import functools
import time
from typing import Any

import numpy as np

from k2jax.agents.mixture import TaskMixture
from k2jax.inference import LockstepClient
from k2jax.inference.engine import Engine
from k2jax.rl.episodes import Episodes
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.failures import FailureGuard
from k2jax.rl.followers.commands import ALONE, Commands
from k2jax.rl.groups import PromptGroup, class_of, note_terms, reward_terms
from k2jax.rl.iteration_metrics import busy_record, engine_record, iteration_record, staleness_record
from k2jax.rl.methods.base import Methods
from k2jax.rl.retention import VerdictRetention
from k2jax.rl.schedules import reward_weights
from k2jax.rl.sync.offload import offloaded
from k2jax.train.run import Run
from k2jax.trajectory.encoding import decode, encode
from k2jax.trajectory.store import TrajectoryStore


class LockstepPrompts:
    """The groups of lockstep iterations: new prompts where groups have left, and those that wait to continue.

    Args:
        episodes: runs the episodes.
        mixture: prompts.
        methods: of the run.

    Attributes:
        episodes: runs the episodes.
        sampled_tokens: of the last ``collect``, of groups that are complete or wait.
    """

    def __init__(self, episodes: Episodes, mixture: TaskMixture, methods: Methods):
        self.episodes, self._mixture, self._methods = episodes, mixture, methods
        self._rl = episodes.config.rl
        self._drawn = self.sampled_tokens = 0
        self._waiting: list[PromptGroup] = []

    async def collect(self, step: int) -> list[PromptGroup]:
        """Runs an iteration's episodes and returns the groups whose members are all done, the oldest first.

        Prompts in flight are always ``rl.rollout.prompts``: new ones are drawn where groups have left. Groups of the
        prompts that methods make of them are spread among them.
        """
        rollout, methods = self._rl.rollout, self._methods
        fresh = rollout.prompts - len(self._waiting)
        groups = [*self._waiting, *(self._begin(step, place) for place in range(fresh))]
        await self.episodes.client.call_each(lambda engine: engine.drop_prefixes())
        before = _sampled_tokens(groups)
        judge = functools.partial(methods.rewards, step, scope="iteration")
        await self.episodes.run(step, groups, token_cap=rollout.token_cap, judge=judge)
        self.sampled_tokens = _sampled_tokens(groups) - before
        self._waiting = [group for group in groups if not group.complete]
        complete = [group for group in groups if group.complete]
        more = [
            PromptGroup(-1, (step, rollout.prompts + place), prompt, [None] * rollout.samples)
            for place, prompt in enumerate(methods.prompts(step, complete))
        ]
        if more:
            await self.episodes.run(step, more)
        groups = _spread(complete, more)
        for group in groups:
            task = class_of(self._rl, group)
            group.terms = reward_terms(group, task, reward_weights(task, step - 1, self.episodes.config.train.steps))
        await methods.rewards(step, groups, scope="group")
        for group in groups:
            note_terms(group)
        return groups

    def began(self, step: int) -> int:
        """The step in which the oldest group that waits after ``step`` began; the next step where none waits."""
        return min((group.key[0] for group in self._waiting), default=step + 1)

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps: the number of prompts drawn, and the groups that wait to continue."""
        waiting = [
            {
                "number": group.number,
                "key": list(group.key),
                "trajectories": [np.frombuffer(encode(trajectory), np.uint8) for trajectory in group.trajectories],
            }
            for group in self._waiting
        ]
        return {"drawn": self._drawn, "waiting": waiting}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continues from what ``extra`` returned."""
        self._drawn = extra["drawn"]
        self._waiting = [
            PromptGroup(
                saved["number"],
                tuple(saved["key"]),
                self._mixture.prompt(saved["number"]),
                [decode(array.tobytes()) for array in saved["trajectories"]],
            )
            for saved in extra["waiting"]
        ]

    def _begin(self, step: int, place: int) -> PromptGroup:
        number, self._drawn = self._drawn, self._drawn + 1
        return PromptGroup(number, (step, place), self._mixture.prompt(number), [None] * self._rl.rollout.samples)


class LockstepSampler:
    """The sampler whose engine steps when every episode waits for it; see ``Sampler``.

    Args:
        run: the run.
        engine: of the policy.
        event_loop: on which the episodes run.
        prompts: of the run.
        clients: of the engines of all roles, the policy's first.
        commands: of the run's processes.
    """

    def __init__(
        self,
        run: Run,
        engine: Engine,
        event_loop: EventLoop,
        prompts: LockstepPrompts,
        clients: Mapping[str, LockstepClient],
        commands: Commands = ALONE,
    ):
        self._run, self._config, self._engine, self._event_loop = run, run.config, engine, event_loop
        self._clients, self._commands = clients, commands
        self._prompts, self.episodes = prompts, prompts.episodes
        self._store = TrajectoryStore(run.workdir / "trajectories", keep=run.config.rl.keep_trajectories)
        self._verdicts = VerdictRetention(self.episodes.scorer.log, run.workdir)
        self._failures, self._record = FailureGuard(run.note), {}

    def begin(self, step: int) -> None:
        """See ``Sampler``."""
        self._verdicts.note(step, self._prompts.began(step))

    def groups(self, step: int) -> Iterator[PromptGroup]:
        """See ``Sampler``; in lockstep all groups of an iteration end together."""
        return iter(self.run(self._prompts.collect(step)))

    def collect(self, step: int) -> list[PromptGroup]:
        """See ``Sampler``.

        Raises:
            UserError: nothing that counts is left of several iterations.
        """
        began, before, busy = time.perf_counter(), self._engine.stats(), self._busy_seconds()
        groups = list(self.groups(step))
        seconds, used = time.perf_counter() - began, engine_record(before, self._engine.stats())
        if self._config.rl.rollout.offload_state:
            self._engine.release()
            for engine in self._frozen():
                engine.release(weights=False)
        self._record = iteration_record(self._config, groups, self._prompts.sampled_tokens, seconds) | used
        self._record |= staleness_record(groups, step - 1)
        if len(self._clients) > 1:  # they take turns
            self._record |= busy_record(busy, self._busy_seconds(), seconds)
        self.store(step, groups)
        self._failures.check(step, groups)
        return groups

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """See ``Sampler``."""
        with offloaded(self._run, self._frozen()):
            return self._commands.issue_while(lambda: self._event_loop.run(coroutine))

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """See ``Sampler``; this one has no trace."""
        return contextlib.nullcontext()

    def store(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """See ``Sampler``."""
        self._store.write(step, [trajectory for group in groups for trajectory in group.trajectories])

    def record(self) -> dict[str, Any]:
        """See ``Sampler``."""
        return self._record

    def saved(self, step: int) -> None:
        """See ``Sampler``; verdicts that no checkpoint leads to are deleted."""
        self._verdicts.note(step, self._prompts.began(step))
        if step % self._config.checkpoint.every == 0:
            self._verdicts.tidy()

    def extra(self) -> dict[str, Any]:
        """See ``Sampler``."""
        return self._prompts.extra()

    def restore(self, extra: Mapping[str, Any]) -> None:
        """See ``Sampler``."""
        self._prompts.restore(extra)

    def _frozen(self) -> list[Engine]:
        """Engines of the roles beside the policy's, which is the first."""
        return [client.engine for client in list(self._clients.values())[1:]]

    def _busy_seconds(self) -> dict[str, float]:
        return {role: client.busy_seconds for role, client in self._clients.items()}


def _spread(groups: list[PromptGroup], more: list[PromptGroup]) -> list[PromptGroup]:
    """Both lists in their orders, one spread evenly over the other: updates take consecutive groups."""
    ranked = [((i + 0.5) / len(part), group) for part in (groups, more) for i, group in enumerate(part)]
    return [group for _, group in sorted(ranked, key=lambda pair: pair[0])]


def _sampled_tokens(groups: list[PromptGroup]) -> int:
    return sum(each.sampled_tokens for group in groups for each in group.trajectories if each is not None)
