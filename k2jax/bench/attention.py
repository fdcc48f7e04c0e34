"""MLA attention, forward and backward, at nano's sizes: against dense scores; and what the max logit costs a step."""

from __future__ import annotations

import functools

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.bench import pretrain
from k2jax.bench.timing import Row, interleaved, time_row
from k2jax.config import ModelConfig, model_preset
from k2jax.losses import NLL
from k2jax.model import model_specs
from k2jax.parallel.accumulate import accumulate
from k2jax.parallel.gradients import make_objective
from k2jax.params import initialize
from k2jax.runtime import device_name
from pallas_kernels.mla_attention import mla_attention

SIZES = ((8, 256), (4, 512), (1, 2048))


def measure(rounds: int = 10) -> list[Row]:
    """One row per size against dense attention, and one for nano's whole step with and without the statistic."""
    model = model_preset("nano")
    rows = [_against_dense(model, batch, sequence, rounds) for batch, sequence in SIZES]
    return [*rows, _statistic(model, rounds)]


def _against_dense(model: ModelConfig, batch: int, sequence: int, rounds: int) -> Row:
    keys = jax.random.split(jax.random.key(0), 5)
    per_head = (batch, model.heads, sequence)
    args = (
        jax.random.normal(keys[0], (*per_head, model.mla.qk_nope_dim)),
        jax.random.normal(keys[1], (*per_head, model.mla.qk_rope_dim)),
        jax.random.normal(keys[2], (*per_head, model.mla.qk_nope_dim)),
        jax.random.normal(keys[3], (batch, sequence, model.mla.qk_rope_dim)),
        jax.random.normal(keys[4], (*per_head, model.mla.v_dim)),
    )
    candidates = {name: functools.partial(gradients(f), *args) for name, f in (("ours", ours), ("dense", dense))}
    seconds = interleaved(candidates, rounds)
    name = f"MLA attention, forward + backward, {batch} x {sequence}, {model.heads} heads"
    return time_row(name, seconds["ours"], seconds["dense"], "dense scores", device_name())


def _statistic(model: ModelConfig, rounds: int) -> Row:
    """Loss and gradients of nano, once with the statistics and once without: what is not returned is not computed."""
    config = pretrain.experiment(model)
    params = initialize(model_specs(model), jax.random.key(0), 0.02)
    rows = pretrain.packed(np.random.default_rng(0).integers(0, model.vocab, (pretrain.ROWS, pretrain.SEQUENCE)))
    batch = jax.tree.map(lambda field: jnp.asarray(field)[None], rows)
    objective = make_objective(config, NLL(), NLL().denominators(batch.targets))
    candidates = {
        "with": jax.jit(lambda params: accumulate(params, batch, objective, config)),
        "without": jax.jit(lambda params: accumulate(params, batch, objective, config)[::2]),
    }
    seconds = interleaved({name: functools.partial(f, params) for name, f in candidates.items()}, rounds)
    name = f"nano's loss and gradients with statistics, {pretrain.ROWS} x {pretrain.SEQUENCE}"
    return time_row(name, seconds["with"], seconds["without"], "without statistics", device_name())


def gradients(function):
    """Gradients of all five inputs; the statistic is returned beside them so that it is computed."""

    def loss(*args):
        out, statistic = function(*args)
        return (out**2).sum(), statistic

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True))


def scale(q_nope: Array, q_rope: Array) -> float:
    """Of the logits."""
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
