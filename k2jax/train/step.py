"""One optimizer step and one validation step, as pure functions to jit."""

from __future__ import annotations

from collections.abc import Callable
import functools
import operator
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import optax

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.losses import Loss
from k2jax.model import ModelStats, combine_stats
from k2jax.optim.groups import without_frozen
from k2jax.parallel.decoupled import make_gradients, make_sums
from k2jax.parallel.layout import Layout
from k2jax.parallel.objective import LossShares, combine_shares
from k2jax.train.state import TrainState, all_finite, compute_dtype


class GradientSums(NamedTuple):
    """What the parts of a batch add up to before the optimizer's update.

    Attributes:
        shares: terms and metrics of the loss, over the denominators of the whole batch.
        stats: of the model.
        grads: gradients, sharded as the weights are stored.
        tokens: ``[]`` int32, tokens that are not padding.
    """

    shares: LossShares
    stats: ModelStats
    grads: Any
    tokens: Array


class StepMetrics(NamedTuple):
    """What a step reports, on the device.

    Attributes:
        loss: ``[]`` float32, the sum of the loss's terms, without the balance loss.
        shares: the terms and the metrics of the loss, over their denominators.
        tokens: ``[]`` int32, tokens of the batch that are not padding.
        grad_norm: ``[]`` float32, global norm before clipping.
        update_norm: ``[]`` float32, global norm of what the step adds to the weights: learning rate, weight decay,
            QK-Clip and the routers' biases included. Of a step that was not applied it is what would have been added.
        stats: over all micro-batches.
        balance_loss: ``[]`` float32, mean over the batch's rows, summed over layers, without its coefficient.
        healthy: ``[]`` bool, False when the step (or an earlier one) was not applied.
    """

    loss: Array
    shares: LossShares
    tokens: Array
    grad_norm: Array
    update_norm: Array
    stats: ModelStats
    balance_loss: Array
    healthy: Array


def make_train_step(
    config: Config, optimizer: optax.GradientTransformationExtraArgs, layout: Layout, loss: Loss
) -> Callable[[TrainState, PackedBatch], tuple[TrainState, StepMetrics]]:
    """The step ``(state, batch [M, B, S]) -> (state, metrics)``; jit it with the state donated.

    The batch is cut into M micro-batches of B rows, as ``parallel.batches`` does.
    """
    gradient_step, apply_step = make_gradient_step(config, layout, loss), make_apply_step(config, optimizer, layout)

    def step(state: TrainState, batch: PackedBatch) -> tuple[TrainState, StepMetrics]:
        return apply_step(state, gradient_step(state.params, batch, loss.denominators(batch.targets)))

    return step


def make_gradient_step(
    config: Config, layout: Layout, loss: Loss
) -> Callable[[Any, PackedBatch, dict[str, Array]], GradientSums]:
    """``(params, batch [M, B, S], denominators) -> sums`` of a batch, or of one of its parts.

    Denominators are those of the whole batch: then the sums of its parts add up to the sums of the batch.
    """
    gradients = make_gradients(config, layout, loss)
    dtype = compute_dtype(config.train.compute_dtype, layout.platform)

    def gradient_step(params: Any, batch: PackedBatch, denominators: dict[str, Array]) -> GradientSums:
        shares, stats, grads = gradients(layout.to_compute(params, dtype), batch, denominators)
        tokens = (batch.exit > jnp.arange(batch.exit.shape[-1])).sum()
        with jax.named_scope("optimizer"):
            grads = without_frozen(layout.specs, config.optimizer, layout.gradients_to_storage(grads))
            return GradientSums(shares, stats, grads, tokens)

    return gradient_step


def no_sums(gradient_step: Callable[..., GradientSums], *arguments: Any) -> GradientSums:
    """What the parts of a batch add up from; of the gradient step's ``arguments`` only shapes count."""
    shapes = jax.eval_shape(gradient_step, *arguments)
    sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    unseen = jax.tree.map(lambda leaf: jnp.full_like(leaf, -jnp.inf), sums.stats.max_logit)
    return sums._replace(stats=sums.stats._replace(max_logit=unseen))


def add_sums(a: GradientSums, b: GradientSums) -> GradientSums:
    """The sums of two parts of a batch together."""
    grads = jax.tree.map(jnp.add, a.grads, b.grads)
    shares, stats = combine_shares(a.shares, b.shares), combine_stats(a.stats, b.stats)
    return GradientSums(shares, stats, grads, a.tokens + b.tokens)


def make_apply_step(
    config: Config, optimizer: optax.GradientTransformationExtraArgs, layout: Layout
) -> Callable[[TrainState, GradientSums], tuple[TrainState, StepMetrics]]:
    """``(state, sums) -> (state, metrics)``: the optimizer's update with the sums of a whole batch.

    Where every gradient is 0, as in reinforcement learning where the loss has clipped all tokens, the state stays.
    """

    def apply_step(state: TrainState, sums: GradientSums) -> tuple[TrainState, StepMetrics]:
        stats = sums.stats
        seen = {"max_logit": stats.max_logit, "expert_tokens": stats.expert_tokens}
        with jax.named_scope("optimizer"):
            grad_norm = optax.global_norm(sums.grads)
            updates, opt_state = optimizer.update(sums.grads, state.opt_state, state.params, **seen)
            update_norm = optax.global_norm(updates)
            new = (state.step + 1, optax.apply_updates(state.params, updates), opt_state)
            healthy = state.healthy & _finite(sums.shares.total, grad_norm, stats.max_logit) & all_finite(new)
            old = (state.step, state.params, state.opt_state)
            changes = healthy & (grad_norm > 0)  # an update of Muon or AdamW does not shrink with its gradient
            kept = jax.tree.map(lambda a, b: jnp.where(changes, a, b), new, old)
        balance_loss = stats.balance_loss / config.train.batch_size
        metrics = StepMetrics(
            sums.shares.total,
            sums.shares,
            sums.tokens,
            grad_norm,
            update_norm=update_norm,
            stats=stats,
            balance_loss=balance_loss,
            healthy=healthy,
        )
        return TrainState(*kept, healthy), metrics

    return apply_step


def _finite(loss: Array, grad_norm: Array, max_logit: dict[str, Array]) -> Array:
    """False on NaN or infinity anywhere; a logit of -inf only says that a head saw nothing."""
    logits = [jnp.all(of_group < jnp.inf) for of_group in max_logit.values()]
    return functools.reduce(operator.and_, logits, jnp.isfinite(loss) & jnp.isfinite(grad_norm))


def make_eval_step(
    config: Config, layout: Layout, loss: Loss
) -> Callable[[Any, PackedBatch], tuple[LossShares, dict[str, Array]]]:
    """The validation step ``(params, batch [M, B, S]) -> (sums of the loss, denominators)``: both add up."""
    loss_sums, dtype = make_sums(config, layout, loss), compute_dtype(config.train.compute_dtype, layout.platform)

    def step(params: Any, batch: PackedBatch) -> tuple[LossShares, dict[str, Array]]:
        return loss_sums(layout.to_compute(params, dtype), batch), loss.denominators(batch.targets)

    return step
