"""Routed experts at nano's sizes, forward and backward, against ``lax.ragged_dot`` and a dense batched matmul."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.bench.timing import Row, time_rows
from k2jax.config import ModelConfig, model_preset
from pallas_kernels.routed_experts import expert_counts, routed_experts

TOKENS = 2048


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the time of value and gradients in tokens, both weights and gates, for a given routing."""
    model = model_preset("nano")
    return compare(model, model.moe.experts, TOKENS, jnp.float32, rounds)


def compare(model: ModelConfig, experts: int, tokens: int, dtype: Any, rounds: int) -> list[Row]:
    """Rows of ``measure`` for a model's widths.

    Args:
        model: widths and active experts.
        experts: number of experts.
        tokens: number of tokens.
        dtype: dtype of tokens and weights.
        rounds: timed runs of each candidate.
    """
    active, width, hidden = model.moe.active_experts, model.d_model, model.moe.expert_ffn
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (tokens, width), dtype)
    w13 = 0.05 * jax.random.normal(keys[1], (experts, width, 2, hidden), dtype)
    w2 = 0.05 * jax.random.normal(keys[2], (experts, hidden, width), dtype)
    gates, random_ids = lax.top_k(jax.nn.sigmoid(jax.random.normal(keys[3], (tokens, experts))), active)
    even = ((jnp.arange(tokens)[:, None] * active + jnp.arange(active)) % experts).astype(jnp.int32)
    rows = []
    for routing, ids in (("random", random_ids.astype(jnp.int32)), ("even", even)):
        candidates = {
            "ours": _gradients(functools.partial(routed_experts, capacity_factor=model.moe.capacity_factor)),
            "lax.ragged_dot": _gradients(_ragged),
            "same FLOPs, one dense batched matmul": _gradients(_dense),
        }
        name = f"experts, forward + backward, {tokens} tokens, {active} of {experts}, {routing} routing"
        runs = {key: functools.partial(f, x, w13, w2, gates, ids) for key, f in candidates.items()}
        rows += time_rows(name, runs, rounds)
    return rows


def _gradients(function):
    def loss(x, w13, w2, gates, ids):
        return (function(x, w13, w2, ids, gates) ** 2).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))


def _swiglu(gate_up: Array) -> Array:
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return jax.nn.silu(gate) * up


def _ragged(x: Array, w13: Array, w2: Array, ids: Array, gates: Array) -> Array:
    """The textbook dropless layer: sort, two ragged products, inverse permutation."""
    active = ids.shape[1]
    order = jnp.argsort(ids.reshape(-1))
    counts = expert_counts(ids, w13.shape[0])
    hidden = _swiglu(lax.ragged_dot(x[order // active], w13.reshape(*w13.shape[:2], -1), counts))
    out = lax.ragged_dot(hidden, w2, counts)[jnp.argsort(order)]
    return (out.reshape(*ids.shape, -1) * gates[..., None]).sum(1)


def _dense(x: Array, w13: Array, w2: Array, ids: Array, gates: Array) -> Array:
    """The same FLOPs without routing: every expert gets an equal, contiguous share of the copies of tokens."""
    experts, active = w13.shape[0], ids.shape[1]
    shares = jnp.tile(x, (active, 1)).reshape(experts, -1, x.shape[1])
    hidden = _swiglu(jnp.einsum("ecd,edf->ecf", shares, w13.reshape(*w13.shape[:2], -1)))
    out = jnp.einsum("ecf,efd->ecd", hidden, w2).reshape(active, *x.shape)
    return (out * gates.T[..., None]).sum(0)
