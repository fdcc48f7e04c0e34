"""From the rewards of a group of responses to one prompt to advantages."""

from __future__ import annotations

import numpy as np

from k2jax.config.schema import AdvantageConfig

LARGEST = 1e18
"""Largest size of a group's reward: the square of an advantage is a float32 in losses."""


def group_advantages(rewards_PK: np.ndarray, counted_PK: np.ndarray, config: AdvantageConfig) -> np.ndarray:
    """Rewards less a baseline of their group: the mean of all (Kimi K1.5, K2 and K2.5) or of the others.

    Computed in float64. With a baseline, a group whose counted rewards are equal, or that has fewer than two, has no
    signal and gives exact zeros, whatever the rounding of its mean.

    Args:
        rewards_PK: float ``[P, K]``, of K responses to each of P prompts.
        counted_PK: bool ``[P, K]``, False for samples that an error of the infrastructure has masked: they enter no
            baseline and get 0.
        config: baseline ``leave_one_out`` takes the mean of the other samples, which makes the estimate of the gradient
            unbiased and its values ``n / (n - 1)`` times as large; with ``none`` the advantage is the reward itself, so
            that rewards of 0 and 1 train on the likelihood of right responses (online rejection sampling). ``scale``
            std divides by the standard deviation of the group (of its n counted rewards, divided by n), as GRPO does
            (arXiv:2402.03300, section 4.1.2).

    Returns:
        Float32 ``[P, K]``.

    Raises:
        ValueError: the shapes differ, or a counted reward is not finite or larger than ``LARGEST``.
    """
    rewards_PK, counted_PK = np.asarray(rewards_PK, np.float64), np.asarray(counted_PK, bool)
    if rewards_PK.shape != counted_PK.shape or rewards_PK.ndim != 2:
        raise ValueError(f"rewards {rewards_PK.shape} and counted samples {counted_PK.shape} are not [P, K] both")
    if not (np.abs(rewards_PK[counted_PK]) <= LARGEST).all():
        raise ValueError(f"a reward that counts is not finite, or larger than {LARGEST:g}")
    rewards_PK = np.where(counted_PK, rewards_PK, 0.0)
    if config.baseline == "none":
        return rewards_PK.astype(np.float32)
    samples_P1 = counted_PK.sum(1, keepdims=True)
    has_signal_P1 = ~flat_groups(rewards_PK, counted_PK)[:, None]
    mean_P1 = rewards_PK.sum(1, keepdims=True) / np.maximum(samples_P1, 1)
    advantages_PK = np.where(counted_PK & has_signal_P1, rewards_PK - mean_P1, 0.0)
    if config.scale == "std":
        deviation_P1 = np.sqrt((advantages_PK**2).sum(1, keepdims=True) / np.maximum(samples_P1, 1))
        advantages_PK = advantages_PK / np.where(has_signal_P1, deviation_P1, 1.0)
    if config.baseline == "leave_one_out":
        advantages_PK = advantages_PK * samples_P1 / np.maximum(samples_P1 - 1, 1)
    return advantages_PK.astype(np.float32)


def flat_groups(rewards_PK: np.ndarray, counted_PK: np.ndarray) -> np.ndarray:
    """Whether the counted rewards of each group are all equal (or fewer than two), bool ``[P]``."""
    highest_P = np.max(rewards_PK, 1, initial=-np.inf, where=counted_PK)
    lowest_P = np.min(rewards_PK, 1, initial=np.inf, where=counted_PK)
    return highest_P <= lowest_P
