"""Rewards as a sum of terms: budget control, and which samples of a group count."""

import numpy as np
import pytest

from k2jax.config import TaskConfig
from k2jax.rl.groups import PromptGroup, RewardTerm, total_reward, verdict_terms
from k2jax.trajectory import Reward, Trajectory

TASK = TaskConfig(overlong_penalty=0.25)


def group(*samples):
    made = [
        Trajectory("task", "math", (0, 0, i), status=status, reward=None if value is None else Reward(value))
        for i, (status, value) in enumerate(samples)
    ]
    return PromptGroup(0, (0, 0), None, made)


def test_only_a_response_that_a_budget_cut_pays_the_penalty_of_its_class():
    cut = group(("finished", 1.0), ("truncated", 1.0), ("truncated", 0.0))
    np.testing.assert_array_equal(total_reward(verdict_terms(cut, TASK)), [1.0, 0.75, -0.25])
    np.testing.assert_array_equal(total_reward(verdict_terms(cut, TaskConfig())), [1.0, 1.0, 0.0])


def test_a_masked_sample_does_not_count_and_is_no_zero_reward():
    partly = group(("finished", 1.0), ("masked", None), ("truncated", 0.5))
    np.testing.assert_array_equal(total_reward(verdict_terms(partly, TASK)), [1.0, 0.0, 0.25])
    np.testing.assert_array_equal(partly.counted_K, [True, False, True])


def test_terms_count_with_their_weights_in_their_order():
    terms = [RewardTerm("verdict", np.array([1.0, 0.0])), RewardTerm("judge", np.array([0.5, 0.25]), 0.2)]
    np.testing.assert_allclose(total_reward(terms), [1.1, 0.05], rtol=1e-15)


@pytest.mark.parametrize("unfit", [("unfinished", 1.0), ("finished", None)])
def test_a_trajectory_without_a_verdict_has_no_reward(unfit):
    with pytest.raises(ValueError, match=r"\(0, 0, 1\) is .* no reward to train on"):
        verdict_terms(group(("finished", 1.0), unfit), TASK)
