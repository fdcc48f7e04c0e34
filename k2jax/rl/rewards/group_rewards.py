"""From what verifiers say to the rewards that advantages are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k2jax.config.schema import TaskConfig
from k2jax.trajectory import Trajectory


def budgeted_reward(trajectory: Trajectory, task: TaskConfig) -> float:
    """The verifier's reward, less the penalty of the class of tasks where a budget has cut the response.

    Budget control of Kimi K2 (section 3.2.3): a response that reaches ``max_tokens`` is truncated, penalised, and stays
    in the loss. Advantages of a group therefore hold the cost of its length.

    Raises:
        ValueError: the trajectory is not finished, or nobody has scored it.
    """
    if trajectory.status not in ("finished", "truncated") or trajectory.reward is None:
        raise ValueError(f"trajectory {trajectory.key} is {trajectory.status} and has no reward to train on")
    penalty = task.overlong_penalty if trajectory.status == "truncated" else 0.0
    return float(trajectory.reward.value) - penalty


def group_rewards(group: Sequence[Trajectory], task: TaskConfig) -> tuple[np.ndarray, np.ndarray]:
    """The rewards of the responses to one prompt, and which of them count.

    Args:
        group: the K trajectories in the order of training.
        task: the class of tasks that the prompt is of.

    Returns:
        Float64 ``[K]``, 0 for masked samples, and bool ``[K]``, False for them.

    Raises:
        ValueError: as ``budgeted_reward``, of a trajectory that is not masked.
    """
    counted_K = np.array([trajectory.status != "masked" for trajectory in group], bool)
    rewards_K = np.zeros(len(group))
    for sample in np.flatnonzero(counted_K):
        rewards_K[sample] = budgeted_reward(group[sample], task)
    return rewards_K, counted_K
