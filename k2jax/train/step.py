"""One optimizer step and one validation step, as pure functions to jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import optax

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.losses import Loss
from k2jax.model import ModelStats
from k2jax.parallel.gradients import make_loss_and_gradients, make_loss_sums
from k2jax.parallel.layout import Layout
from k2jax.parallel.objective import LossShares
from k2jax.train.state import TrainState, all_finite, compute_dtype


class StepMetrics(NamedTuple):
    """What a step reports, on the device.

    Attributes:
        loss: ``[]`` float32, the sum of the loss's terms, without the balance loss.
        shares: the terms and the metrics of the loss, over their denominators.
        tokens: ``[]`` int32, tokens of the batch that are not padding.
        grad_norm: ``[]`` float32, global norm before clipping.
        stats: over all micro-batches.
        balance_loss: ``[]`` float32, mean over the batch's rows, summed over layers, without its coefficient.
        healthy: ``[]`` bool, False when the step (or an earlier one) was not applied.
    """

    loss: Array
    shares: LossShares
    tokens: Array
    grad_norm: Array
    stats: ModelStats
    balance_loss: Array
    healthy: Array


def make_train_step(
    config: Config, optimizer: optax.GradientTransformationExtraArgs, layout: Layout, loss: Loss
) -> Callable[[TrainState, PackedBatch], tuple[TrainState, StepMetrics]]:
    """The step ``(state, batch [M, B, S]) -> (state, metrics)``; jit it with the state donated.

    The batch is cut into M micro-batches of B rows, as ``parallel.batches`` does.
    """
    loss_and_gradients = make_loss_and_gradients(config, layout, loss)
    dtype = compute_dtype(config.train.compute_dtype, layout.platform)

    def step(state: TrainState, batch: PackedBatch) -> tuple[TrainState, StepMetrics]:
        shares, stats, grads = loss_and_gradients(layout.to_compute(state.params, dtype), batch)
        with jax.named_scope("optimizer"):
            grads = layout.gradients_to_storage(grads)
            grad_norm = optax.global_norm(grads)
            updates, opt_state = optimizer.update(
                grads, state.opt_state, state.params, max_logit=stats.max_logit, expert_tokens=stats.expert_tokens
            )
            new = (state.step + 1, optax.apply_updates(state.params, updates), opt_state)
            healthy = state.healthy & _finite(shares.total, grad_norm, stats.max_logit) & all_finite(new)
            old = (state.step, state.params, state.opt_state)
            kept = jax.tree.map(lambda a, b: jnp.where(healthy, a, b), new, old)
        balance_loss = stats.balance_loss / config.train.batch_size
        tokens = (batch.exit > jnp.arange(batch.exit.shape[-1])).sum()
        metrics = StepMetrics(shares.total, shares, tokens, grad_norm, stats, balance_loss, healthy)
        return TrainState(*kept, healthy), metrics

    return step


def _finite(loss: Array, grad_norm: Array, max_logit: Array) -> Array:
    """False on NaN or infinity anywhere; a logit of -inf only says that a head saw nothing."""
    return jnp.isfinite(loss) & jnp.isfinite(grad_norm) & jnp.all(max_logit < jnp.inf)


def make_eval_step(
    config: Config, layout: Layout, loss: Loss
) -> Callable[[Any, PackedBatch], tuple[LossShares, dict[str, Array]]]:
    """The validation step ``(params, batch [M, B, S]) -> (sums of the loss, denominators)``: both add up."""
    loss_sums, dtype = make_loss_sums(config, layout, loss), compute_dtype(config.train.compute_dtype, layout.platform)

    def step(params: Any, batch: PackedBatch) -> tuple[LossShares, dict[str, Array]]:
        return loss_sums(layout.to_compute(params, dtype), batch), loss.denominators(batch.targets)

    return step
