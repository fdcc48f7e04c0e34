"""Advantages of groups against loops over samples in float64."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.mixture import DrawnTask
from k2jax.agents.task import Task
from k2jax.config import AdvantageConfig
from k2jax.config.schema import RLConfig
from k2jax.rl.advantages import flat_groups, group_advantages
from k2jax.rl.groups import PromptGroup, RewardTerm, training_samples
from tests.refusal import refused
from tests.rl.trees import single_turn

PLAIN = AdvantageConfig()


@st.composite
def groups(draw):
    prompts, samples = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rewards = rng.choice([0.0, 0.1, 0.5, 1.0, -0.3], (prompts, samples))
    return rewards, rng.random((prompts, samples)) < draw(st.sampled_from([0.2, 0.7, 1.0]))


@given(groups(), st.sampled_from(["mean", "leave_one_out"]), st.sampled_from(["none", "std"]))
def test_the_baseline_of_a_sample_is_made_of_counted_samples_of_its_group(problem, baseline, scale):
    rewards, counted = problem
    found = group_advantages(rewards, counted, AdvantageConfig(baseline, scale))
    assert found.dtype == np.float32 and found.shape == rewards.shape
    for row in range(len(rewards)):
        members = np.flatnonzero(counted[row])
        for sample in range(rewards.shape[1]):
            others = [rewards[row, other] for other in members if other != sample or baseline == "mean"]
            expected = 0.0
            if sample in members and len({rewards[row, other] for other in members}) > 1:
                deviation = np.std(rewards[row, members]) if scale == "std" else 1.0
                expected = (rewards[row, sample] - np.mean(others)) / deviation
            np.testing.assert_allclose(found[row, sample], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_groups_without_signal_give_exact_zeros(baseline, scale):
    rewards = np.array([[0.1] * 3 + [7.0], [1.0, 0.0, np.nan, np.inf], [0.0] * 4])  # the mean of three 0.1 is not 0.1
    counted = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
    assert flat_groups(rewards, counted).all()
    assert not group_advantages(rewards, counted, AdvantageConfig(baseline, scale)).any()


def test_advantages_of_a_group_sum_to_zero_and_one_difference_is_a_signal():
    rewards, counted = np.array([[0.0, 0.0, 0.0, 1.0]]), np.ones((1, 4), bool)
    assert not flat_groups(rewards, counted).any()
    np.testing.assert_array_equal(group_advantages(rewards, counted, PLAIN), [[-0.25, -0.25, -0.25, 0.75]])


@pytest.mark.parametrize(
    ("rewards", "counted", "words"),
    [
        (np.zeros((2, 3)), np.ones((2, 2), bool), "not \\[P, K\\] both"),
        (np.zeros(3), np.ones(3, bool), "not \\[P, K\\] both"),
        (np.array([[np.nan, 1.0]]), np.ones((1, 2), bool), "not finite"),
    ],
)
def test_rewards_that_are_no_rewards_are_refused(rewards, counted, words):
    with pytest.raises(ValueError, match=words):
        group_advantages(rewards, counted, PLAIN)


def test_without_a_baseline_the_advantage_is_the_reward():
    rewards, counted = np.array([[1.0, 0.0, 5.0], [1.0, 1.0, 1.0]]), np.array([[True, True, False], [True] * 3])
    found = group_advantages(rewards, counted, AdvantageConfig("none"))
    np.testing.assert_array_equal(found, [[1, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize("value", [1e300, -1e300, 1e39, np.inf, np.nan])
@pytest.mark.parametrize("config", [PLAIN, AdvantageConfig(scale="std"), AdvantageConfig("none")])
def test_a_reward_that_would_overflow_is_refused_and_a_masked_one_is_not_looked_at(value, config):
    """With the scale std it was no signal at all, silently."""
    rewards = np.array([[value, 0.0, 1.0]])
    with refused("not finite, or larger than", ValueError):
        group_advantages(rewards, np.ones((1, 3), bool), config)
    masked = group_advantages(rewards, np.array([[False, True, True]]), config)
    assert np.isfinite(masked).all() and masked[0, 0] == 0


def test_the_task_of_a_reward_that_would_overflow_is_named():
    task = Task("big", "domain", ({"role": "user", "content": "x"},), "math")
    answers = [single_turn(np.random.default_rng(i), key=(1, 0, i)) for i in range(2)]
    terms = [RewardTerm("verifier", np.array([0.0, 1e6]), 1e30), RewardTerm("overlong", np.zeros(2))]
    group = PromptGroup(0, (1, 0), DrawnTask("low", task), answers, terms=terms)
    with refused("the task 'big' of class 'low' has a reward .* verifier 1e.36"):
        training_samples(RLConfig(), [group])
