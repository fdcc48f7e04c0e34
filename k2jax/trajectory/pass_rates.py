"""Difficulty of tasks for a model: the share of its samples that are right, and the filter that uses it.

``python -m k2jax.trajectories --pass_rates`` writes the shares of a collection to the file that
``rl.tasks.NAME.pass_rates`` names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
import json
from pathlib import Path
from typing import Protocol, TypeVar

from k2jax.errors import UserError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.filters import CORRECT_REWARD


class NamedTask(Protocol):
    """What is sampled: a task, by its domain and its name there."""

    domain: str
    id: str


Sampled = TypeVar("Sampled", bound=NamedTask)
PassRates = dict[str, dict[str, float]]
"""Share of right samples by domain and id of a task."""


def pass_rates(trajectories: Iterable[Trajectory]) -> PassRates:
    """Share of right samples for every task; those without a reward, which are masked, are left out."""
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in trajectories:
        if trajectory.reward is not None:
            rewards[trajectory.domain][trajectory.task].append(trajectory.reward.value)
    return {
        domain: {task: sum(value >= CORRECT_REWARD for value in values) / len(values) for task, values in tasks.items()}
        for domain, tasks in rewards.items()
    }


def read_pass_rates(path: str | Path) -> PassRates:
    """Reads a file of pass rates.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    try:
        rates = json.loads(Path(path).read_text(encoding="utf-8"))
        numbers = [rate for tasks in rates.values() for rate in tasks.values()]
    except OSError as error:
        raise UserError(f"cannot read the pass rates {path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} holds no pass rates; python -m k2jax.trajectories --pass_rates writes them") from error
    if not all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in numbers):
        raise UserError(f"{path} holds a pass rate outside [0, 1]")
    return rates


def moderate(tasks: Iterable[Sampled], rates: PassRates, low: float, high: float) -> list[Sampled]:
    """The tasks that a model neither always fails nor always solves, in their order (Kimi K2, section 3.2.1).

    Args:
        tasks: to choose from.
        rates: pass rates; a task without one was not sampled, and is left out.
        low: least rate that is kept.
        high: largest rate that is kept.
    """
    return [task for task in tasks if low <= rates.get(task.domain, {}).get(task.id, -1.0) <= high]
