"""What a verifier may return as a reward."""

import numpy as np
import pytest

from k2jax.agents.rewards import LARGEST, checked_reward
from k2jax.trajectory import Reward
from tests.refusal import refused


@pytest.mark.parametrize("value", [1e300, -1e300, 1e39, 2 * LARGEST, 10**400, float("inf"), float("nan")])
def test_a_reward_that_would_overflow_is_an_error_of_its_verifier(value):
    with refused("rewards are at most 1e.06 in size|no reward of finite numbers", ValueError):
        checked_reward(value)
    with refused("rewards are at most|no reward of finite numbers", ValueError):
        checked_reward(Reward(value, {"part": 1.0}))


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 0, True, np.float32(0.5), 2**19])
def test_every_other_number_is_a_reward(value):
    assert checked_reward(value)["value"] == float(value)
