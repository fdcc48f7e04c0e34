"""The prompts of a run: a mixture of classes of tasks, as a function of the seed and a prompt's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import functools
import hashlib
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task, check_choices
from k2jax.config.schema import RLConfig, TaskConfig
from k2jax.errors import UserError
from k2jax.mixture_plan import MixturePlan
from k2jax.trajectory.pass_rates import moderate, read_pass_rates

CRITIC = "critic"
"""Name of the class of tasks in which the policy is trained as a judge; ``config.rl.critic`` describes it."""


class DrawnTask(NamedTuple):
    """A task and the name of its class: one of ``config.rl.tasks``, or CRITIC."""

    kind: str
    task: Task


def class_config(rl: RLConfig, kind: str) -> TaskConfig:
    """How a class of tasks is sampled and rewarded."""
    if kind != CRITIC:
        return rl.tasks[kind]
    critic = rl.critic
    return TaskConfig(
        max_tokens=critic.max_tokens, temperature=critic.temperature, temperature_final=critic.temperature
    )


class TaskMixture:
    """Training prompts without end, and held-out ones.

    Args:
        tasks: classes of tasks by name.
        seed: of the order.
        fits: whether a task of a class is used; None is all of them.

    Attributes:
        fingerprint: hash of all training tasks and of their order.

    Raises:
        UserError: there is no class of tasks, or a dataset cannot be loaded.
    """

    def __init__(self, tasks: Mapping[str, TaskConfig], seed: int, fits: Callable[[str, Task], bool] | None = None):
        if not tasks:
            raise UserError("config.rl.tasks is empty: name at least one class of tasks")
        self._configs, self._seed, self._names, self._fits = tasks, seed, sorted(tasks), fits
        self._train = {name: self._load(name, "train") for name in self._names}
        self._plan = MixturePlan([tasks[name].weight for name in self._names], [None] * len(tasks))
        digest = hashlib.sha256(repr([(name, tasks[name].weight, seed) for name in self._names]).encode())
        for name in self._names:
            for task in self._train[name]:
                digest.update(task.to_json().encode())
        self.fingerprint = digest.hexdigest()

    def __iter__(self) -> Iterator[Task]:
        """All training tasks, class by class."""
        return itertools.chain.from_iterable(self._train.values())

    def training_prompts(self) -> Iterator[DrawnTask]:
        """Every training task once, class by class."""
        return (DrawnTask(name, task) for name in self._names for task in self._train[name])

    def all_prompts(self, held_out: int) -> Iterator[DrawnTask]:
        """Every training task once, then so many held-out ones, which are loaded when the training ones are read."""
        yield from self.training_prompts()
        if held_out:
            yield from self.held_out(held_out)

    def prompt(self, number: int) -> DrawnTask:
        """Training prompt ``number``, from 0; a class is shuffled anew in each of its epochs."""
        source, index = self._plan[number]
        name = self._names[source]
        epoch, place = divmod(index, len(self._train[name]))
        return DrawnTask(name, self._train[name][int(self._order(name, epoch)[place])])

    def held_out(self, count: int, split: FileSplit = "test") -> list[DrawnTask]:
        """At most ``count`` held-out prompts, or of ``all``, the same at every call, with the shares of training."""
        tasks = {name: self._load(name, split) for name in self._names}
        plan = MixturePlan(
            [self._configs[name].weight for name in self._names], [len(tasks[name]) for name in self._names]
        )
        chosen = (plan[number] for number in range(min(count, len(plan))))
        return [DrawnTask(self._names[source], tasks[self._names[source]][index]) for source, index in chosen]

    def _load(self, name: str, split: FileSplit) -> list[Task]:
        config = self._configs[name]
        check_choices(config)
        tasks = [task.with_choices(config) for task in load_tasks(config.dataset, config.options, split)]
        if self._fits is not None:
            kept = [task for task in tasks if self._fits(name, task)]
            if tasks and not kept:
                raise UserError(
                    f"config.rl.rollout.long_prompts leaves none of {len(tasks)} {split} tasks of class {name!r}; "
                    "raise config.rl.rollout.max_length"
                )
            tasks = kept
        return tasks if split != "train" or not config.pass_rates else _of_moderate_difficulty(name, config, tasks)

    @functools.lru_cache(maxsize=64)  # noqa: B019 (a run has one mixture)
    def _order(self, name: str, epoch: int) -> np.ndarray:
        seed = hashlib.blake2b(f"{self._seed}/{name}/{epoch}".encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).permutation(len(self._train[name]))


def _of_moderate_difficulty(name: str, config: TaskConfig, tasks: list[Task]) -> list[Task]:
    kept = moderate(tasks, read_pass_rates(config.pass_rates), *config.pass_band)
    if not kept:
        raise UserError(
            f"config.rl.tasks.{name}.pass_rates leaves none of {len(tasks)} tasks: {config.pass_rates} has no rate in "
            f"{config.pass_band} for them"
        )
    return kept
