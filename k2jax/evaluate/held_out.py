"""The held-out tasks of a run of reinforcement learning as suites: what it measures of itself, asked of any model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from k2jax.agents.mixture import TaskMixture
from k2jax.agents.task import Task
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.evaluate.suite import Suite, checked_suite

GREEDY = "-greedy"
"""Ends the name of the suite with one greedy answer to each task of a class."""
_OF_CLASS = ("dataset", "options", "max_tokens", "episode_tokens", "steps", "thinking", "scaffold", "tools")


class HeldOutSuites:
    """Two suites for each class of tasks: ``NAME-greedy``, and ``NAME`` with ``rl.eval_samples`` sampled answers.

    Their tasks are those that the run is evaluated on, so that the greedy answers of its own model are the same.

    Args:
        config: of the run.

    Attributes:
        max_length: longest sequence of the run's engine [tokens].

    Raises:
        UserError: it has no held-out tasks, or they ask more than one model.
    """

    def __init__(self, config: Config):
        rl = config.rl
        if config.stage != "rl":
            raise UserError(f"--config: stage {config.stage} has no held-out tasks, which are those of stage rl")
        if not rl.eval_prompts:
            raise UserError("--config: config.rl.eval_prompts is 0; say of how many held-out tasks there are answers")
        if rl.roles:
            raise UserError(
                "--config: config.rl.roles name models beside the policy, which an evaluation does not have"
            )
        self._config, self.max_length = config, rl.rollout.max_length
        self._tasks: dict[str, list[Task]] = defaultdict(list)
        for drawn in TaskMixture(rl.tasks, config.train.seed).held_out(rl.eval_prompts):
            self._tasks[drawn.kind].append(drawn.task)

    def suites(self, changes: Mapping[str, Any]) -> dict[str, Suite]:
        """The suites by name, with settings that replace theirs.

        Raises:
            UserError: a setting has no meaning.
        """
        found, rl = {}, self._config.rl
        drawn = {"temperature": rl.eval_temperature, "top_p": rl.eval_top_p, "top_k": rl.eval_top_k}
        drawn |= {"samples": rl.eval_samples, "metrics": ("pass", "pass_hat") if rl.eval_samples > 1 else ()}
        for kind, tasks in self._tasks.items():
            fields = {name: getattr(rl.tasks[kind], name) for name in _OF_CLASS}
            fields |= {"split": "test", "count": len(tasks), "seed": self._config.train.seed}
            fields |= {"correct": rl.correct_reward}
            found[kind + GREEDY] = checked_suite(fields | {**changes, "samples": 1})
            found[kind] = checked_suite(fields | drawn | dict(changes))
        return found

    def tasks(self, name: str, suite: Suite) -> list[Task]:
        """The tasks of a suite."""
        return self._tasks[name.removesuffix(GREEDY)][: suite.count or None]
