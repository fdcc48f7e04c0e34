"""What changes over a run of reinforcement learning: pure functions of the iteration, so that a resumed run agrees."""

from __future__ import annotations

import numpy as np

from k2jax.config.schema import TaskConfig


def reward_weights(task: TaskConfig, iteration: int, iterations: int) -> dict[str, float]:
    """The weights of the terms of a class's rewards in an iteration: ``verifier``, ``judge`` and ``overlong``.

    Each goes linearly from its first value in iteration 0 to its final one after the share ``reward_decay`` of the run.

    Args:
        task: the class of tasks.
        iteration: from 0.
        iterations: of the whole run.
    """
    ends = {
        "verifier": (task.verifier_weight, task.verifier_weight_final),
        "judge": (task.judge_weight, task.judge_weight_final),
        "overlong": (task.overlong_penalty, task.overlong_penalty_final),
    }
    progress = _progress(task.reward_decay, iteration, iterations)
    return {
        name: first if last is None else (1 - progress) * first + progress * last
        for name, (first, last) in ends.items()
    }


def sampling_temperature(task: TaskConfig, iteration: int, iterations: int) -> float:
    """The temperature at which a class of tasks is sampled in an iteration.

    It falls linearly from ``temperature`` in iteration 0 to ``temperature_final``, which it reaches after the share
    ``temperature_decay`` of the run, and stays there (Kimi K2, section 3.2.3: exploration first, then stability).
    Without a share it is ``temperature`` throughout.

    Args:
        task: the class of tasks.
        iteration: from 0.
        iterations: of the whole run.

    Returns:
        A number that float32 holds exactly, so that what is recorded of a token is what it was sampled at.

    Raises:
        ValueError: the iteration is negative, or the run has none.
    """
    progress = _progress(task.temperature_decay, iteration, iterations)
    return float(np.float32((1 - progress) * task.temperature + progress * task.temperature_final))


def _progress(share: float, iteration: int, iterations: int) -> float:
    """How much of a change over a share of the run is done, in [0, 1]; 0 without a share."""
    if iteration < 0 or iterations < 1:
        raise ValueError(f"iteration {iteration} of {iterations} does not exist")
    return min(1.0, iteration / (share * iterations)) if share else 0.0
