"""Loss and gradients of one device's rows without pipeline stages: micro-batch after micro-batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.model import ModelStats, combine_stats, forward, head_weight
from k2jax.model.collectives import is_sharded
from k2jax.model.feed_forward import Experts
from k2jax.model.remat import Remat
from k2jax.parallel.objective import LossShares, Objective, combine_shares
from k2jax.params import TEXT
from k2jax.sharding import TENSOR
from pallas_kernels.vma import vary_tree

ACCUMULATE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
FEATURES = "features"
"""Name, among the weights of a step, of the table ``[F, D]`` of features of images, which ``batch.media`` indexes."""


def loss_shares(
    params: Any, batch: PackedBatch, objective: Objective, config: Config, experts: Experts | None = None
) -> tuple[LossShares, ModelStats]:
    """This device's shares of the loss of ``batch [B, S]``, and the model's statistics.

    Args:
        params: the compute copy of the weights, and ``FEATURES`` where the batch has media.
        batch: ``[B, S]``.
        objective: the loss and its denominators.
        config: the experiment.
        experts: see ``model.feed_forward.moe``.
    """
    hidden_BSD, stats = forward(
        params,
        batch.tokens,
        batch.positions,
        batch.exit,
        config.model,
        remat=Remat.from_config(config.train),
        experts=experts,
        replayed=batch.experts,
        media=None if batch.media is None else (params[FEATURES], batch.media),
    )
    return _shares(params, hidden_BSD, batch, objective, config), stats


def _shares(params: Any, hidden_BSD: Array, batch: PackedBatch, objective: Objective, config: Config) -> LossShares:
    head_VD = head_weight(params)
    shards = {"axis_name": TENSOR, "vocab": config.model.vocab} if is_sharded(head_VD) else {}
    return objective.shares(hidden_BSD, head_VD, batch, **shards)


def accumulate(
    params: Any, batch: PackedBatch, objective: Objective, config: Config, experts: Experts | None = None
) -> tuple[LossShares, ModelStats, Any]:
    """This device's share of loss, statistics and gradients.

    Denominators belong to the whole batch, so accumulation changes nothing but rounding; shares of micro-batches and
    devices add up.

    Args:
        params: the compute copy of the weights.
        batch: ``[M, B, S]``, M micro-batches.
        objective: the loss and its denominators.
        config: the experiment.
        experts: see ``model.feed_forward.moe``.

    Returns:
        Shares of the loss, statistics, gradients in ``config.train.gradient_dtype``.
    """

    def total(params: Any, part: PackedBatch) -> tuple[Array, tuple[LossShares, ModelStats]]:
        shares, stats = loss_shares(params, part, objective, config, experts)
        return shares.total + objective.balance * stats.balance_loss, (shares, stats)

    gradient = jax.value_and_grad(total, has_aux=True)
    dtype = ACCUMULATE[config.train.gradient_dtype]

    def micro_batch(sums: Any, part: PackedBatch) -> tuple[LossShares, ModelStats, Any]:
        (_, (shares, stats)), grads = gradient(*_shown(params, part))
        return shares, stats, add_gradients(sums, grads, part.media)

    zeros = jax.tree.map(lambda p: vary_tree(jnp.zeros(p.shape, dtype), like=(p, batch.tokens)), params)
    first = jax.tree.map(lambda leaf: leaf[0], batch)
    if batch.tokens.shape[0] == 1:
        return micro_batch(zeros, first)

    def add(sums, part):
        shares, stats, grads = micro_batch(sums[2], part)
        return (combine_shares(sums[0], shares), combine_stats(sums[1], stats), grads), None

    like = (params["final_norm"], batch.tokens)
    empty_BSD = functools.partial(jnp.zeros, (*first.tokens.shape, config.model.d_model), params["final_norm"].dtype)
    shapes = jax.eval_shape(lambda: _shares(params, empty_BSD(), first, objective, config))
    shares = jax.tree.map(lambda share: jnp.zeros(share.shape, share.dtype), shapes)
    shares, stats = vary_tree((shares, empty_stats(config)), like=like)
    stats = stats._replace(max_logit=vary_tree(stats.max_logit, like=params))  # of this device's heads
    return lax.scan(add, (shares, stats, zeros), batch)[0]


def _shown(params: Any, part: PackedBatch) -> tuple[Any, PackedBatch]:
    """The weights with the features that a micro-batch shows, ``[B S, D]``, in place of the step's table of them.

    A gradient of the table would be as large as the table for every micro-batch, and nearly all zeros.
    """
    if part.media is None:
        return params, part
    shown = params[FEATURES][jnp.maximum(part.media, 0)].reshape(-1, params[FEATURES].shape[-1])
    own = jnp.arange(len(shown), dtype=part.media.dtype).reshape(part.media.shape)
    return {**params, FEATURES: shown}, part.replace(media=jnp.where(part.media >= 0, own, -1))


def add_gradients(sums: Any, grads: Any, index: Array | None, first: Array | int = 0) -> Any:
    """Sums of gradients of weights by name, and the gradients of one micro-batch, which may lack some of them.

    Args:
        sums: of all micro-batches before.
        grads: of this one; of ``FEATURES`` ``[..., D]``, of the features that its tokens show.
        index: int32 ``[B, S]``, which row of the table each token shows, -1 for none.
        first: number of the table's first row on this device.
    """
    added = {}
    for name, more in grads.items():
        if name == FEATURES:
            table = sums[name]
            row = index.reshape(-1) - first
            row = jnp.where((row >= 0) & (row < len(table)), row, len(table))  # what is not here is dropped
            flat = more.reshape(-1, table.shape[-1]).astype(table.dtype)
            added[name] = table.at[row].add(flat, mode="drop")
        else:
            added[name] = jax.tree.map(lambda a, g: a + g.astype(a.dtype), sums[name], more)
    return {**sums, **added}


def empty_stats(config: Config) -> ModelStats:
    """The decoder's statistics of no tokens, on one device."""
    model = config.model
    return ModelStats(
        {TEXT: jnp.full((model.layers, model.heads // config.parallel.tensor), -jnp.inf)},
        jnp.zeros((model.layers - model.dense_layers, model.moe.experts), jnp.int32),
        jnp.zeros(()),
        jnp.zeros((model.layers - model.dense_layers,), jnp.int32),
    )
