"""Rewards as a sum of terms: budget control, and which samples of a group count."""

import numpy as np
import pytest

from k2jax.config import TaskConfig
from k2jax.rl.groups import PromptGroup, RewardTerm, note_terms, reward_terms, total_reward
from k2jax.rl.schedules import reward_weights
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.annotations import RewardPart, reward_parts

TASK = TaskConfig(overlong_penalty=0.25)


def verdict_terms(group, task, iteration=0):
    return reward_terms(group, task, reward_weights(task, iteration, 10))


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


def test_verifier_judge_and_penalty_are_one_sum_whose_weights_change_over_the_run():
    """Over half of ten iterations the judge's weight goes from 0.5 to 0, the penalty's from 0 to 0.2."""
    task = TaskConfig(
        judge_weight=0.5, judge_weight_final=0.0, overlong_penalty_final=0.2, verifier_weight=2.0, reward_decay=0.5
    )
    scored = group(("finished", 1.0), ("truncated", 0.0), ("masked", None))
    scored.wins = {0: 0.25, 1: 1.0}
    sums = [total_reward(verdict_terms(scored, task, iteration)) for iteration in (0, 1, 5, 9)]
    np.testing.assert_allclose(
        sums, [[2.125, 0.5, 0.0], [2.1, 0.4 - 0.04, 0.0], [2.0, -0.2, 0.0], [2.0, -0.2, 0.0]], rtol=1e-12
    )
    scored.terms = [*verdict_terms(scored, task, 1), RewardTerm("toggle", np.zeros(3), -1.0)]
    note_terms(scored)
    parts = [("verifier", 0.0, 2.0), ("judge", 1.0, 0.4), ("overlong", -1.0, pytest.approx(0.04))]
    assert reward_parts(scored.trajectories[1]) == [RewardPart(*part) for part in parts]
    assert not reward_parts(scored.trajectories[2])


def test_a_reward_that_is_no_sum_has_no_parts():
    plain = group(("finished", 1.0))
    plain.terms = verdict_terms(plain, TaskConfig())
    note_terms(plain)
    assert plain.trajectories[0].metadata == {}


def test_a_class_that_the_judge_alone_rewards_has_no_verifier_s_term():
    judged = group(("finished", 0.75), ("finished", 0.25))
    judged.wins = {0: 0.75, 1: 0.25}
    terms = verdict_terms(judged, TaskConfig(verifier_weight=0.0, judge_weight=1.0))
    assert [term.name for term in terms] == ["judge", "overlong"]
    np.testing.assert_array_equal(total_reward(terms), [0.75, 0.25])
