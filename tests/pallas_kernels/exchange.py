"""Routings and inputs of the expert exchange's tests."""

from __future__ import annotations

import numpy as np

from tests.pallas_kernels import expert_oracle

E, K, D = 16, 3, expert_oracle.D
ROUTINGS = [
    "uniform",
    "all tokens to one rank",
    "ranks that receive nothing",
    "none",
    "mixed with none",
    "an expert twice",
    "own rank only",
]


def route(pattern, ranks, tokens, seed):
    """Draws int32 expert ids [P, T, K] in [0, E]."""
    rng = np.random.default_rng(seed)
    local, shape = E // ranks, (ranks, tokens, K)
    ids = rng.integers(0, E, shape)
    if pattern == "all tokens to one rank":
        ids = rng.integers(ranks) * local + rng.integers(0, local, shape)
    elif pattern == "ranks that receive nothing":
        ids = rng.choice([0, ranks - 1], shape) * local + rng.integers(0, local, shape)
    elif pattern == "none":
        ids[:] = E
    elif pattern == "mixed with none":
        ids[rng.random(shape) < 0.5] = E
    elif pattern == "an expert twice":
        ids[..., 1] = ids[..., 0]
    elif pattern == "own rank only":
        ids = np.arange(ranks)[:, None, None] * local + rng.integers(0, local, shape)
    return ids.astype(np.int32)


def inputs(rows, seed):
    """Draws float32 (x, w13, w2, gates) of all ranks together, and a cotangent of y."""
    return expert_oracle.inputs(rows, K, E, seed)


def without_dropped(ids, slots):
    """Removes, token by token, the rows that find no slot; returns ids and the number of removed rows of each rank."""
    ids, dropped = ids.copy(), np.zeros(len(ids), np.int64)
    ranks, tokens, _ = ids.shape
    for rank, peer in np.ndindex(ranks, ranks):
        taken = 0
        for token in range(tokens):
            mine = ids[rank, token] // (E // ranks) == peer
            if mine.any() and taken == slots:
                ids[rank, token, mine] = E
                dropped[rank] += 1
            elif mine.any():
                taken += 1
    return ids, dropped
