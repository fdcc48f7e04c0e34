"""MLA attention, forward and backward, at nano's sizes: against dense scores; and what the max logit costs a step."""

from __future__ import annotations

import functools

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.bench.timing import Row, interleaved, time_row
from k2jax.config import model_preset
from k2jax.train.report import device_name
from pallas_kernels.mla_attention import mla_attention

SIZES = ((8, 256), (4, 512), (1, 2048))


def measure(rounds: int = 10) -> list[Row]:
    """One row per size against dense attention, one for the same kernel with its statistic thrown away."""
    model = model_preset("nano")
    rows = []
    for batch, sequence in SIZES:
        keys = jax.random.split(jax.random.key(0), 5)
        per_head = (batch, model.heads, sequence)
        args = (
            jax.random.normal(keys[0], (*per_head, model.qk_nope_dim)),
            jax.random.normal(keys[1], (*per_head, model.qk_rope_dim)),
            jax.random.normal(keys[2], (*per_head, model.qk_nope_dim)),
            jax.random.normal(keys[3], (batch, sequence, model.qk_rope_dim)),
            jax.random.normal(keys[4], (*per_head, model.v_dim)),
        )
        candidates = {"ours": _gradients(_ours), "without": _gradients(_without_statistic), "dense": _gradients(_dense)}
        seconds = interleaved({name: functools.partial(f, *args) for name, f in candidates.items()}, rounds)
        name = f"MLA attention, forward + backward, {batch} x {sequence}, {model.heads} heads"
        rows += [
            time_row(name, seconds["ours"], seconds["dense"], "dense scores", device_name()),
            time_row(name, seconds["ours"], seconds["without"], "ours without the max logit", device_name()),
        ]
    return rows


def _gradients(function):
    """Gradients of all five inputs; the statistic is returned beside them so that it is computed."""

    def loss(*args):
        out, statistic = function(*args)
        return (out**2).sum(), statistic

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True))


def _scale(q_nope: Array, q_rope: Array) -> float:
    return (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5


def _ours(*args: Array) -> tuple[Array, Array]:
    out, stats = mla_attention(*args, scale=_scale(*args[:2]))
    return out, stats.max_logit


def _without_statistic(*args: Array) -> tuple[Array, Array]:
    return mla_attention(*args, scale=_scale(*args[:2]))[0], jnp.zeros(())


def _dense(q_nope: Array, q_rope: Array, k_nope: Array, k_rope: Array, v: Array) -> tuple[Array, Array]:
    """Materialised scores and automatic differentiation."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q_nope, k_nope) + jnp.einsum("bhqd,bkd->bhqk", q_rope, k_rope)
    length = scores.shape[-1]
    scores = jnp.where(jnp.tri(length, dtype=bool), scores * _scale(q_nope, q_rope), -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v), scores.max((0, 2, 3))
