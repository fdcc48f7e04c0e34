"""What changes over a run of reinforcement learning: pure functions of the iteration, so that a resumed run agrees."""

from __future__ import annotations

import numpy as np

from k2jax.config.schema import TaskConfig


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
    if iteration < 0 or iterations < 1:
        raise ValueError(f"iteration {iteration} of {iterations} does not exist")
    progress = min(1.0, iteration / (task.temperature_decay * iterations)) if task.temperature_decay else 0.0
    return float(np.float32((1 - progress) * task.temperature + progress * task.temperature_final))
