"""Routings, inputs and the oracle of the expert exchange's tests."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

E, K, D, F = 16, 3, 8, 6
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
    rng = np.random.default_rng(seed)
    shapes = (rows, D), (E, D, 2, F), (E, F, D), (rows, K), (rows, D)
    x, w13, w2, gates, dy = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return (x, w13 / np.float32(D**0.5), w2 / np.float32(F**0.5), gates), dy


def dense(x, w13, w2, gates, ids):
    """Computes y on one device with every expert on every token, weighted by the one-hot choice."""
    weight_TE = jnp.einsum("tk,tke->te", gates, jax.nn.one_hot(ids, E, dtype=gates.dtype))
    h = jnp.einsum("td,edjf->tejf", x, w13)
    return jnp.einsum("te,tef,efd->td", weight_TE, jax.nn.silu(h[:, :, 0]) * h[:, :, 1], w2)


@jax.jit
def _oracle(arrays, dy, ids):
    y, vjp = jax.vjp(partial(dense, ids=ids), *arrays)
    return y, vjp(dy)


def oracle(arrays, dy, ids):
    """Computes y and the gradients of x, w13, w2 and gates in float64."""
    with jax.enable_x64(True):
        exact = [np.asarray(a, np.float64) for a in arrays]
        y, grads = _oracle(exact, np.asarray(dy, np.float64), ids.reshape(-1, K))
        return np.asarray(y), [np.asarray(grad) for grad in grads]


def assert_close(name, got, expected, tolerance=1e-5):
    """Compares the maximum error with the largest value: of each expert for weights, of the whole otherwise."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected)
    axes = tuple(range(1, got.ndim)) if name.startswith("w") else None
    error = np.abs(got - expected).max(axis=axes)
    assert np.all(error <= tolerance * np.abs(expected).max(axis=axes)), (name, error)


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
