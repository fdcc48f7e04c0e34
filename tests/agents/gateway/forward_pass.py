"""The oracle of recorded log-probabilities: one forward pass over each path of a trajectory."""

import numpy as np

from tests.inference.tiny import oracle

VERSION = 3
"""Of the weights of the engines that this oracle checks."""


def check_logprobs(model, trajectory, temperature):
    """Compares what was recorded of all sampled tokens; returns how many were compared, once for each path."""
    compared = 0
    for leaf in trajectory.leaves():
        nodes = [trajectory.nodes[index] for index in trajectory.path(leaf)]
        sampled = [node for node in nodes if node.turn >= 0]
        assert all(set(node.versions.tolist()) == {VERSION} and node.temperature == temperature for node in sampled)
        path_T = trajectory.path_tokens(leaf)
        expected_TV = oracle(model, path_T.tolist(), temperature)
        expected_T = np.concatenate([[0.0], expected_TV[np.arange(len(path_T) - 1), path_T[1:]]])
        logprobs_T = np.concatenate([node.logprobs for node in nodes])
        sampled_T = np.concatenate([np.full(len(node.tokens), node.turn >= 0) for node in nodes])
        np.testing.assert_allclose(logprobs_T[sampled_T], expected_T[sampled_T], atol=1e-4)
        compared += int(sampled_T.sum())
    return compared
