"""Loss and gradients of one device's rows without pipeline stages: micro-batch after micro-batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.model import ModelStats, combine_stats, forward, head_weight, token_logprobs
from k2jax.model.feed_forward import Experts
from k2jax.model.spread import is_part
from k2jax.sharding import TENSOR
from pallas_kernels.varying import vary_tree

ACCUMULATE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def nll_sum(
    params: Any, batch: PackedBatch, config: Config, experts: Experts | None = None
) -> tuple[Array, ModelStats]:
    """Weighted sum of negative log-likelihoods [nats] over ``batch [B, S]``, and the model's statistics.

    Args:
        params: the compute copy of the weights.
        batch: ``[B, S]``.
        config: the experiment.
        experts: see ``model.feed_forward.moe``.
    """
    hidden, stats = forward(
        params, batch.tokens, batch.positions, batch.exit, config.model, remat=config.train, experts=experts
    )
    head = head_weight(params)
    rows = {"axis_name": TENSOR, "vocab": config.model.vocab} if is_part(head) else {}
    logprobs = token_logprobs(hidden, batch.parent, batch.tokens, head, **rows)
    return -(batch.weights * logprobs).sum(), stats


def accumulate(
    params: Any, batch: PackedBatch, denominator: Array, config: Config, experts: Experts | None = None
) -> tuple[Array, ModelStats, Any]:
    """This device's share of loss, statistics and gradients.

    The denominator is the weight of the whole batch, known before the first micro-batch, so that accumulation changes
    nothing but rounding; shares of micro-batches and devices add up.

    Args:
        params: the compute copy of the weights.
        batch: ``[M, B, S]``, M micro-batches.
        denominator: ``[]`` float32.
        config: the experiment.
        experts: see ``model.feed_forward.moe``.

    Returns:
        Loss ``[]``, statistics, gradients in ``config.train.gradient_dtype``.
    """
    gradient = jax.value_and_grad(functools.partial(_share, config=config, experts=experts), has_aux=True)
    dtype = ACCUMULATE[config.train.gradient_dtype]

    def one(part: PackedBatch) -> tuple[Array, ModelStats, Any]:
        (_, (loss, stats)), grads = gradient(params, part, denominator)
        return loss, stats, grads

    if batch.tokens.shape[0] == 1:
        loss, stats, grads = one(jax.tree.map(lambda a: a[0], batch))
        return loss, stats, jax.tree.map(lambda g: g.astype(dtype), grads)

    def add(total, part):
        loss, stats, grads = one(part)
        summed = jax.tree.map(lambda a, g: a + g.astype(dtype), total[2], grads)
        return (total[0] + loss, combine_stats(total[1], stats), summed), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, dtype), params)
    loss, stats = vary_tree((jnp.zeros(()), no_stats(config)), like=(params["final_norm"], batch.tokens))
    stats = stats._replace(max_logit=vary_tree(stats.max_logit, like=params))  # of this device's heads
    zeros = jax.tree.map(lambda zero, p: vary_tree(zero, like=(p, batch.tokens)), zeros, params)
    return lax.scan(add, (loss, stats, zeros), batch)[0]


def no_stats(config: Config) -> ModelStats:
    """Statistics of nothing, on one device."""
    model = config.model
    return ModelStats(
        jnp.full((model.layers, model.heads // config.parallel.tensor), -jnp.inf),
        jnp.zeros((model.layers - model.dense_layers, model.experts), jnp.int32),
        jnp.zeros(()),
        jnp.zeros((model.layers - model.dense_layers,), jnp.int32),
    )


def _share(params: Any, batch: PackedBatch, denominator: Array, config: Config, experts: Experts | None):
    nll, stats = nll_sum(params, batch, config, experts)
    loss = nll / denominator
    return loss + config.router.balance_loss * stats.balance_loss / config.train.batch_size, (loss, stats)
