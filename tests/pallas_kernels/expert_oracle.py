"""Routings, inputs and two oracles of routed experts: token by token, and every expert on every token, in float64."""

from functools import partial
import math

import jax
import jax.numpy as jnp
import numpy as np

D, F = 8, 12
ROUTINGS = ["uniform", "one expert", "few experts", "none", "mixed with none"]
NAMES = ("x", "w13", "w2", "gates")


def route(pattern, tokens, active, experts, seed):
    """Draws int32 expert ids [T, K] in [0, E]."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, experts, (tokens, active))
    if pattern == "one expert":
        ids[:] = rng.integers(experts)
    elif pattern == "few experts":
        ids = rng.choice(rng.choice(experts, max(1, experts // 3), replace=False), (tokens, active))
    elif pattern == "none":
        ids[:] = experts
    elif pattern == "mixed with none":
        ids = np.where(rng.random((tokens, active)) < 0.4, experts, ids)
    return ids.astype(np.int32)


def inputs(tokens, active, experts, seed):
    """Draws float32 (x, w13, w2, gates) and a cotangent of y."""
    rng = np.random.default_rng(seed)
    shapes = (tokens, D), (experts, D, 2, F), (experts, F, D), (tokens, active), (tokens, D)
    x, w13, w2, gates, dy = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return (x, w13 / math.sqrt(D), w2 / math.sqrt(F), np.abs(gates) + np.float32(0.1)), dy


def loop_oracle(x, w13, w2, gates, ids):
    """Computes y token by token in NumPy float64."""
    x, w13, w2, gates = (np.asarray(a, np.float64) for a in (x, w13, w2, gates))
    y = np.zeros_like(x)
    for t, k in np.ndindex(ids.shape):
        if ids[t, k] < len(w2):
            gate, up = np.einsum("d,djf->jf", x[t], w13[ids[t, k]])
            y[t] += gates[t, k] * (gate / (1 + np.exp(-gate)) * up) @ w2[ids[t, k]]
    return y


def dense(x, w13, w2, gates, ids):
    """Computes y with every expert on every token, weighted by the one-hot choice, without sorting or gathering."""
    weight_TE = jnp.einsum("tk,tke->te", gates, jax.nn.one_hot(ids, w13.shape[0], dtype=gates.dtype))
    h = jnp.einsum("td,edjf->tejf", x, w13)
    a = jax.nn.silu(h[:, :, 0]) * h[:, :, 1]
    return jnp.einsum("te,tef,efd->td", weight_TE, a, w2)


@jax.jit
def _differentiated(arrays, dy, ids):
    y, pull = jax.vjp(partial(dense, ids=ids), *arrays)
    return y, pull(dy)


def dense_oracle(arrays, dy, ids):
    """Computes y of ``dense`` and its gradients in float64."""
    with jax.enable_x64(True):
        exact = [np.asarray(array, np.float64) for array in (*arrays, dy)]
        return jax.tree.map(np.asarray, _differentiated(exact[:-1], exact[-1], ids))


def assert_close(name, got, expected, tolerance):
    """Compares the maximum error with the largest value: of each expert for weights, of the whole otherwise."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected)
    axes = tuple(range(1, got.ndim)) if name.startswith("w") else None
    error = np.abs(got - expected).max(axis=axes)
    assert np.all(error <= tolerance * np.abs(expected).max(axis=axes)), (name, error)


def check(run, arrays, dy, ids, tolerance=1e-5):
    """Compares y and all gradients of ``run(arrays, dy, ids)`` with the oracles in float64."""
    y, grads = run(arrays, dy, ids)
    exact = [np.asarray(jnp.asarray(array, jnp.float32)) for array in (*arrays, dy)]
    assert_close("y", y, loop_oracle(*exact[:-1], ids), tolerance)
    for name, got, expected in zip(NAMES, grads, dense_oracle(exact[:-1], exact[-1], ids)[1], strict=True):
        assert_close(name, got, expected, tolerance)
    return y, grads


def check_bfloat16(run, arrays, dy, ids):
    """Rounding of inputs and of what is stored only: no loss that grows with the number of rows or blocks."""
    x, w13, w2, dy = (jnp.asarray(array, jnp.bfloat16) for array in (*arrays[:3], dy))
    y, grads = check(run, (x, w13, w2, arrays[3]), dy, ids, 1e-2)
    assert [y.dtype, *(grad.dtype for grad in grads)] == [jnp.bfloat16] * 4 + [jnp.float32]
