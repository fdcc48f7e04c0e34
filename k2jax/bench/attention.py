"""MLA attention, forward and backward, at nano's sizes: against dense scores; and what the max logit costs a step."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.bench import pretrain
from k2jax.bench.timing import Row, time_rows
from k2jax.config import ModelConfig, model_preset
from k2jax.losses import NLL
from k2jax.model import model_specs
from k2jax.parallel.accumulate import accumulate
from k2jax.parallel.gradients import make_objective
from k2jax.params import initialize
from pallas_kernels.mla_attention import mla_attention

SIZES = ((8, 256), (4, 512), (1, 2048))


def measure(rounds: int = 10) -> list[Row]:
    """One row per size against dense attention, and one for nano's whole step with and without the statistic."""
    model = model_preset("nano")
    rows = [_against_dense(model, batch, sequence, rounds) for batch, sequence in SIZES]
    return [*rows, _statistic(model, rounds)]


def _against_dense(model: ModelConfig, batch: int, sequence: int, rounds: int) -> Row:
    args = inputs(model, batch, sequence)
    candidates = {"ours": gradients(ours), "dense scores": gradients(dense)}
    name = f"MLA attention, forward + backward, {batch} x {sequence}, {model.heads} heads"
    [row] = time_rows(name, {name: functools.partial(f, *args) for name, f in candidates.items()}, rounds)
    return row


def inputs(model: ModelConfig, batch: int, sequence: int, dtype: Any = jnp.float32) -> tuple[Array, ...]:
    """Random values of the five inputs of ``mla_attention``: of queries, keys and values of a model's heads."""
    widths, per_head = model.mla, (batch, model.heads, sequence)
    shapes = (
        (*per_head, widths.qk_nope_dim),
        (*per_head, widths.qk_rope_dim),
        (*per_head, widths.qk_nope_dim),
        (batch, sequence, widths.qk_rope_dim),
        (*per_head, widths.v_dim),
    )
    return random_arrays(shapes, dtype)


def random_arrays(shapes: tuple[tuple[int, ...], ...], dtype: Any) -> tuple[Array, ...]:
    """Arrays of normal numbers."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))


def _statistic(model: ModelConfig, rounds: int) -> Row:
    """Loss and gradients of nano, once with the statistics and once without: what is not returned is not computed."""
    config = pretrain.experiment(model)
    params = initialize(model_specs(model), jax.random.key(0), 0.02)
    rows = pretrain.packed(np.random.default_rng(0).integers(0, model.vocab, (pretrain.ROWS, pretrain.SEQUENCE)))
    batch = jax.tree.map(lambda field: jnp.asarray(field)[None], rows)
    objective = make_objective(config, NLL(), NLL().denominators(batch.targets))
    candidates = {
        "with statistics": jax.jit(lambda params: accumulate(params, batch, objective, config)),
        "without statistics": jax.jit(lambda params: accumulate(params, batch, objective, config)[::2]),
    }
    name = f"nano's loss and gradients with statistics, {pretrain.ROWS} x {pretrain.SEQUENCE}"
    [row] = time_rows(name, {name: functools.partial(f, params) for name, f in candidates.items()}, rounds)
    return row


def gradients(function):
    """Gradients of all five inputs; the statistic is returned beside them so that it is computed."""

    def loss(*args):
        out, statistic = function(*args)
        return (out**2).sum(), statistic

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True))


def scale(q_nope: Array, q_rope: Array) -> float:
    """Factor of the logits."""
    return (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5


def ours(*args: Array) -> tuple[Array, Array]:
    """Output and maximum logits of the five inputs of ``mla_attention``, causal."""
    out, stats = mla_attention(*args, scale=scale(*args[:2]))
    return out, stats.max_logit


def dense(q_nope: Array, q_rope: Array, k_nope: Array, k_rope: Array, v: Array) -> tuple[Array, Array]:
    """Materialised scores and automatic differentiation."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q_nope, k_nope) + jnp.einsum("bhqd,bkd->bhqk", q_rope, k_rope)
    length = scores.shape[-1]
    scores = jnp.where(jnp.tri(length, dtype=bool), scores * scale(q_nope, q_rope), -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v), scores.max((0, 2, 3))
