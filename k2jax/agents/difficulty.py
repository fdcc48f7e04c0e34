"""Difficulty of tasks for a model, by how often its samples are right (pass@k), and the filter that uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from k2jax.agents.task import Task
from k2jax.errors import UserError


def pass_rates(rewards: Mapping[str, Sequence[float]], correct: float = 1.0) -> dict[str, float]:
    """Share of right samples for every task.

    Args:
        rewards: of the samples of each task, by its id; masked samples are left out by the caller.
        correct: least reward of a right sample.

    Returns:
        Rates by id; a task without samples has none.
    """
    return {task: sum(r >= correct for r in values) / len(values) for task, values in rewards.items() if len(values)}


def moderate(tasks: Iterable[Task], rates: Mapping[str, float], low: float = 0.1, high: float = 0.9) -> list[Task]:
    """The tasks that a model neither always fails nor always solves, in their order (Kimi K2, section 3.2.1).

    Args:
        tasks: to choose from.
        rates: pass rates by id; a task without one was not sampled, and is left out.
        low: least rate that is kept.
        high: largest rate that is kept.

    Raises:
        UserError: the band is empty or lies outside [0, 1].
    """
    if not 0 <= low <= high <= 1:
        raise UserError(f"the band of pass rates is {low} to {high}; write 0 <= low <= high <= 1")
    return [task for task in tasks if low <= rates.get(task.id, -1.0) <= high]
