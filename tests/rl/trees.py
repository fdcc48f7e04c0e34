"""Trajectories for tests, with random tokens."""

import numpy as np

from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import ROOT


def sampled(rng, parent, count, turn, temperature=1.0):
    """A node of ``count`` sampled tokens."""
    return Node(
        parent,
        rng.integers(0, 50, count).astype(np.int32),
        np.ones(count, bool),
        -rng.random(count).astype(np.float32),
        versions=np.zeros(count, np.int64),
        turn=turn,
        temperature=temperature,
        finish="stop",
    )


def single_turn(rng, prompt=5, response=4, key=(1, 0, 0), temperature=1.0):
    """A prompt and one answer."""
    trajectory = Trajectory("task", "domain", key, status="finished")
    trajectory.add(Node.observed(ROOT, rng.integers(0, 50, prompt)))
    trajectory.add(sampled(rng, 0, response, 0, temperature))
    return trajectory


def several_turns(rng, turns=3):
    """A prompt, then answers with an observation after each but the last."""
    trajectory = single_turn(rng)
    for turn in range(1, turns):
        last = trajectory.add(Node.observed(len(trajectory.nodes) - 1, rng.integers(0, 50, 3)))
        trajectory.add(sampled(rng, last, int(rng.integers(1, 5)), turn))
    return trajectory


def forked(rng):
    """Two answers after one sampled turn: two paths share it."""
    trajectory = single_turn(rng)
    for turn in (1, 2):
        seen = trajectory.add(Node.observed(1, rng.integers(0, 50, 2)))
        trajectory.add(sampled(rng, seen, 3, turn))
    return trajectory
