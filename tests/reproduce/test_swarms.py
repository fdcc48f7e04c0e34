"""Measures of the study of the swarm: means over episodes, and the steps that an Item-F1 takes."""

import numpy as np
import pytest

from k2jax.reproduce.swarms import budget_key, episode_means, steps_spread, steps_to_reach
from k2jax.trajectory import Reward
from tests.agents.test_steps import agent


def test_parallelism_of_episodes_is_the_ratio_of_their_steps():
    episodes = [agent([(0, [[[(3, ())], [(2, ())]]])]), agent([(1, ()), (1, ())])]
    for each, value in zip(episodes, (0.5, 1.0), strict=True):
        each.reward = Reward(value, {"item_f1": value / 2, "exact": float(value == 1)})
    means = episode_means(episodes)
    assert means["parallelism"] == (1 + 3 + 2 + 2) / (1 + 3 + 2) and means["finished"] == 1.0
    assert (means["items"], means["item_f1"], means["exact"], means["assigned"]) == (0.75, 0.375, 0.5, 1.0)
    assert "finished" not in episode_means(episodes[1:])


def test_the_steps_of_an_item_f1_lie_between_two_budgets():
    budgets, f1 = (4, 8, 10), (0.1, 0.4, 0.8)
    record = {budget_key(budget): value for budget, value in zip(budgets, f1, strict=True)}
    for threshold in (0.05, 0.1, 0.3, 0.5, 0.8):
        expected = np.interp(threshold, (0.0, *f1), (0, *budgets))
        assert steps_to_reach(record, budgets, threshold) == pytest.approx(expected)
    assert steps_to_reach(record, budgets, 0.9) is None
    assert steps_spread([8.0, None]) == "8.0 (8.0 to 8.0, 1 never)" and steps_spread([None]) == "never"
