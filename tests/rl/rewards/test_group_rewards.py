"""Budget control, and which samples of a group count."""

import numpy as np
import pytest

from k2jax.config import TaskConfig
from k2jax.rl.rewards.group_rewards import budgeted_reward, group_rewards
from k2jax.trajectory import Reward, Trajectory

TASK = TaskConfig(overlong_penalty=0.25)


def trajectory(status, value=None):
    return Trajectory("task", "math", (0, 0, 0), status=status, reward=None if value is None else Reward(value))


def test_only_a_response_that_a_budget_cut_pays_the_penalty_of_its_class():
    assert budgeted_reward(trajectory("finished", 1.0), TASK) == 1.0
    assert budgeted_reward(trajectory("truncated", 1.0), TASK) == 0.75
    assert budgeted_reward(trajectory("truncated", 0.0), TASK) == -0.25
    assert budgeted_reward(trajectory("truncated", 0.0), TaskConfig()) == 0.0


def test_a_masked_sample_does_not_count_and_is_no_zero_reward():
    rewards, counted = group_rewards(
        [trajectory("finished", 1.0), trajectory("masked"), trajectory("truncated", 0.5)], TASK
    )
    np.testing.assert_array_equal(rewards, [1.0, 0.0, 0.25])
    np.testing.assert_array_equal(counted, [True, False, True])
    assert rewards.dtype == np.float64 and counted.dtype == bool


@pytest.mark.parametrize("unfit", [("unfinished", 1.0), ("finished", None), ("masked", 1.0)])
def test_a_trajectory_without_a_verdict_has_no_reward(unfit):
    with pytest.raises(ValueError, match=r"\(0, 0, 0\) is .* no reward to train on"):
        budgeted_reward(trajectory(*unfit), TASK)
