"""Whether a trajectory is consistent: tokens, masks, versions, turns and rewards."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np

from k2jax.trajectory.types import NO_TURN, NO_VERSION, ROOT, Node, Status, Trajectory

FINISHES = ("stop", "length", "cancelled")
SLACK = 1e-4
"""Amount by which rounding may lift a log-probability above 0 [nats]."""
_TYPES = {"tokens": np.int32, "mask": np.bool_, "logprobs": np.float32, "versions": np.int64}


def verify(trajectory: Trajectory, vocab_size: int | None = None) -> list[str]:
    """Returns what is inconsistent in a trajectory, a line each; an empty list where all is well.

    Args:
        trajectory: to check.
        vocab_size: token ids must be below it, where given.
    """
    problems = _trajectory_problems(trajectory)
    for index, node in enumerate(trajectory.nodes):
        lines = array_problems(index, node) or [
            *_token_problems(node, vocab_size), *_turn_problems(node), *_order_problems(trajectory, index),
        ]  # fmt: skip
        problems += [f"node {index}: {line}" for line in lines]
    for number, ended in trajectory.spawned.items():
        problems += [f"sub-episode {number}: {line}" for line in verify(ended, vocab_size)]
    return problems


def _trajectory_problems(trajectory: Trajectory) -> list[str]:
    problems = []
    if trajectory.status not in get_args(Status):
        problems.append(f"the status {trajectory.status!r} is unknown")
    if len(trajectory.key) != 3 or any(part < 0 for part in trajectory.key):
        problems.append(f"the key {trajectory.key} is not (step, prompt, sample)")
    if (trajectory.status == "masked") != bool(trajectory.error):
        problems.append("a masked trajectory says why in `error`, and no other has one")
    reward = trajectory.reward
    if reward is not None:
        if trajectory.status in ("masked", "unfinished"):
            problems.append(f"it is {trajectory.status} and has a reward")
        if not all(math.isfinite(value) for value in (reward.value, *reward.parts.values())):
            problems.append("its reward or a part of it is not finite")
    return problems


def array_problems(index: int, node: Node) -> list[str]:
    """Returns what is wrong with the parent and the arrays of a node, a line each; ``index`` is its own."""
    problems = []
    if not ROOT <= node.parent < index:
        problems.append(f"the parent {node.parent} is no earlier node")
    for name, dtype in _TYPES.items():
        array = getattr(node, name)
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (len(node.tokens),):
            problems.append(f"{name} are not {np.dtype(dtype).name} [{len(node.tokens)}]")
    experts = node.experts
    if experts is not None and not (
        isinstance(experts, np.ndarray) and experts.dtype == np.int16 and experts.ndim == 3
        and len(experts) == len(node.tokens)
    ):  # fmt: skip
        problems.append(f"experts are not int16 [{len(node.tokens)}, expert layers, active experts]")
    free = node.free_logprobs
    if free is not None and not (
        isinstance(free, np.ndarray) and free.dtype == np.float32 and free.shape == (len(node.tokens),)
    ):
        problems.append(f"free_logprobs are not float32 [{len(node.tokens)}]")
    return problems


def _token_problems(node: Node, vocab_size: int | None) -> list[str]:
    sampled_T = node.versions != NO_VERSION
    checks = {
        "token ids are negative": node.tokens < 0,
        "token ids are outside of the vocabulary": node.tokens >= (vocab_size if vocab_size else np.inf),
        "trainable tokens have no version": node.mask & ~sampled_T,
        "versions are negative": sampled_T & (node.versions < 0),
        "log-probabilities are not finite": ~np.isfinite(node.logprobs),
        "log-probabilities are above 0": node.logprobs > SLACK,
        "tokens that were not sampled have log-probabilities": ~sampled_T & (node.logprobs != 0),
    }
    return [f"{what} (first at token {int(np.argmax(wrong_T))})" for what, wrong_T in checks.items() if wrong_T.any()]


def _turn_problems(node: Node) -> list[str]:
    sampled = bool((node.versions != NO_VERSION).any())
    problems = []
    if node.turn < NO_TURN:
        problems.append(f"the turn {node.turn} is no number of a call")
    if sampled and node.turn == NO_TURN:
        problems.append("it has sampled tokens and no turn")
    if not (math.isfinite(node.temperature) and node.temperature >= 0):
        problems.append(f"the temperature {node.temperature} is not one to sample at")
    if node.turn == NO_TURN and node.temperature != 1:
        problems.append("an observation has a temperature")
    if node.turn == NO_TURN and node.finish:
        problems.append("an observation has a finish reason")
    if node.turn != NO_TURN and node.finish not in FINISHES:
        problems.append(f"the finish reason {node.finish!r} is none of {', '.join(FINISHES)}")
    return problems


def _order_problems(trajectory: Trajectory, index: int) -> list[str]:
    """Weights and turns only increase: down a path neither a version nor the number of a call falls."""
    node = trajectory.nodes[index]
    versions = node.versions[node.versions != NO_VERSION]
    problems = ["versions fall within the node"] if (np.diff(versions) < 0).any() else []
    last_version, last_turn = NO_VERSION, NO_TURN
    child, ancestor = index, node.parent
    while ROOT < ancestor < child:  # a parent that is no earlier node is a problem of its own
        earlier = trajectory.nodes[ancestor]
        last_version = max(last_version, int(earlier.versions.max(initial=NO_VERSION)))
        last_turn = max(last_turn, earlier.turn)
        child, ancestor = ancestor, earlier.parent
    if len(versions) and versions[0] < last_version:
        problems.append(f"its version {versions[0]} follows the version {last_version}")
    if NO_TURN < node.turn < last_turn:
        problems.append(f"its turn {node.turn} follows the turn {last_turn}")
    return problems
