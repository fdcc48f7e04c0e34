"""Evaluation on held-out tasks while a run trains: of the untrained policy, at the interval and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from k2jax.config.schema import Config
from k2jax.rl.evaluation import HeldOutTasks, held_out_words
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.sampler import Sampler
from k2jax.train.run import Run


class HeldOutEvaluation(Method):
    """Evaluates with the run's own engine and verifiers.

    Args:
        parts: of the run.
        methods: may judge answers, too; see ``Method.evaluate``.
    """

    def __init__(self, parts: Parts, methods: Methods):
        self._parts, self._methods = parts, methods

    @staticmethod
    def used(config: Config) -> bool:
        """Whether there are held-out tasks."""
        return bool(config.rl.eval_prompts)

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> HeldOutEvaluation:
        """See ``Method``."""
        return cls(parts, methods)

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Evaluates the untrained policy before the first iteration of the run."""
        self._run, self._sampler = run, sampler
        self._tasks = HeldOutTasks(self._parts.config, self._parts.mixture, sampler.episodes)
        if run.start == 0 and self._tasks.is_due(0):
            run.log(0, self._evaluated(0))

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, float]:
        """The evaluation of a step's weights, where it is due."""
        return self._evaluated(step) if self._tasks.is_due(step) else {}

    def _evaluated(self, step: int) -> dict[str, float]:
        record = self._sampler.run(self._evaluate(step))
        self._run.note(held_out_words(step, record))
        return record

    async def _evaluate(self, step: int) -> dict[str, float]:
        groups = await self._tasks.sample(step)
        return self._tasks.record(groups) | await self._methods.evaluate(groups)
