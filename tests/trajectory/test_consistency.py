"""The check of stored trajectories finds each inconsistency by its name."""

import dataclasses

import numpy as np
import pytest

from k2jax.trajectory import Reward, verify
from tests.trajectory.trees import chat


def test_a_consistent_trajectory_has_no_problem():
    assert verify(chat()) == []
    assert verify(chat(), vocab_size=11) == []


FIELDS = {
    "status 'done' is unknown": {"status": "done"},
    "is not (step, prompt, sample)": {"key": (0, -1, 0)},
    "a masked trajectory says why": {"status": "masked", "reward": None},
    "no other has one": {"error": "a process died"},
    "it is unfinished and has a reward": {"status": "unfinished"},
    "not finite": {"reward": Reward(1.0, {"style": float("nan")})},
}


@pytest.mark.parametrize("problem", FIELDS)
def test_an_inconsistent_trajectory_is_told(problem):
    (line,) = verify(dataclasses.replace(chat(), **FIELDS[problem]))
    assert problem in line


NODES = {
    "node 2: the parent 4 is no earlier node": (2, {"parent": 4}),
    "node 1: tokens are not int32 [2]": (1, {"tokens": np.array([4, 5])}),
    "node 1: mask are not bool [2]": (1, {"mask": np.ones(3, np.bool_)}),
    "node 3: experts are not int16 [3, ": (3, {"experts": np.zeros((2, 1, 1), np.int16)}),
    "node 3: free_logprobs are not float32 [3]": (3, {"free_logprobs": np.zeros(2, np.float32)}),
    "node 3: token ids are negative (first at token 1)": (3, {"tokens": np.array([7, -8, 9], np.int32)}),
    "node 3: token ids are outside of the vocabulary": (3, {"tokens": np.array([7, 11, 9], np.int32)}),
    "node 0: trainable tokens have no version (first at token 2)": (0, {"mask": np.arange(3) == 2}),
    "node 3: versions are negative": (3, {"versions": np.array([-2, -2, -2])}),
    "node 3: log-probabilities are not finite": (3, {"logprobs": np.array([0, -np.inf, 0], np.float32)}),
    "node 3: log-probabilities are above 0": (3, {"logprobs": np.array([0, 0, 0.1], np.float32)}),
    "node 0: tokens that were not sampled have log-": (0, {"logprobs": np.array([0, -1, 0], np.float32)}),
    "node 3: it has sampled tokens and no turn": (3, {"turn": -1, "finish": ""}),
    "node 3: the turn -2 is no number": (3, {"turn": -2}),
    "node 3: the temperature nan": (3, {"temperature": float("nan")}),
    "node 0: an observation has a temperature": (0, {"temperature": 0.5}),
    "node 0: an observation has a finish reason": (0, {"finish": "stop"}),
    "node 3: the finish reason '' is none of": (3, {"finish": ""}),
    "node 3: versions fall within the node": (3, {"versions": np.array([5, 4, 5])}),
    "node 3: its version 2 follows the version 3": (3, {"versions": np.array([2, 2, 2])}),
    "node 3: its turn 0 follows the turn 3": (1, {"turn": 3}),
}


@pytest.mark.parametrize("problem", NODES)
def test_an_inconsistent_node_is_told(problem):
    trajectory = chat()
    index, changed = NODES[problem]
    trajectory.nodes[index] = dataclasses.replace(trajectory.nodes[index], **changed)
    if "its turn 0" in problem:
        trajectory.nodes[3] = dataclasses.replace(trajectory.nodes[3], turn=0)
    assert any(problem in line for line in verify(trajectory, vocab_size=11))
