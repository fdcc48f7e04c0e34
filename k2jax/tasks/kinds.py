"""Datasets of generated tasks of several kinds, whose names are their prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import random

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate, nearest
from k2jax.tasks.drawing import distinct


class TasksOfKinds:
    """Distinct tasks, each kind with equal probability.

    Args:
        dataset: its name, for messages.
        known: all kinds.
        draw: makes any task of a kind.
        kinds: those that are drawn.
        count: number of tasks.
        seed: of their choice; the splits of all seeds are disjoint.
        split: ``train`` or ``test``.

    Raises:
        UserError: a kind is unknown, or ``count`` is not positive.
    """

    def __init__(
        self,
        dataset: str,
        known: Sequence[str],
        draw: Callable[[str, random.Random], Task],
        *,
        kinds: Sequence[str],
        count: int,
        seed: int,
        split: Split,
    ):
        for kind in kinds:
            if kind not in known:
                raise UserError(f"{dataset}: there is no kind {abbreviate(kind)}{nearest(kind, known)}")
        if not kinds or count < 1:
            raise UserError(f"{dataset}: count must be positive and kinds named")
        self._dataset, self._draw, self._kinds = dataset, draw, kinds
        self._count, self._seed, self._split = count, seed, split

    def load(self) -> Iterator[Task]:
        """The tasks in a random order that depends on the options alone.

        Raises:
            UserError: there are not as many distinct ones.
        """
        rng = random.Random(f"{self._dataset} {self._seed} {self._split} {' '.join(self._kinds)}")

        def draw() -> tuple[str, Task]:
            task = self._draw(rng.choice(self._kinds), rng)
            return task.id, task

        words = {"dataset": self._dataset, "things": "tasks", "remedy": "the number of kinds"}
        for _, task in distinct(draw, self._count, self._split, **words):
            yield task
