"""Sigmoid routing with group limits (DeepSeek-V3, section 2.1.2) and the sequence-level balance loss."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.model.remat import named
from k2jax.model.spread import sum_over_rows
from pallas_kernels.routed_experts import expert_counts


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        expert_ids: ``[B, S, K]`` int32 in [0, E]; E means no expert (padding).
        gates: ``[B, S, K]`` float32 weights of the experts' outputs; 0 on padding.
        counts: ``[E]`` int32 tokens per expert.
        balance_loss: ``[]`` float32, summed over rows.
    """

    expert_ids: Array
    gates: Array
    counts: Array
    balance_loss: Array


@jax.named_scope("router")
def route(weight: Array, bias: Array, x: Array, real: Array, config: ModelConfig) -> Routing:
    """Chooses experts by biased scores and weighs them by unbiased ones, all in float32.

    Args:
        weight: ``[D, E]``.
        bias: ``[E]`` float32 selection bias; it gets no gradient, balancing moves it.
        x: ``[B, S, D]``, normalised.
        real: ``[B, S]`` bool, False on padding: routed nowhere and counted nowhere.
        config: the architecture.
    """
    logits = jnp.einsum(
        "bsd,de->bse", x.astype(jnp.float32), weight.astype(jnp.float32), precision=lax.Precision.HIGHEST
    )
    scores = named(jax.nn.sigmoid(logits), "router_scores")
    choice = _limit_groups(lax.stop_gradient(scores) + lax.stop_gradient(bias), config)
    _, chosen = lax.top_k(choice, config.active_experts)
    chosen = named(chosen, "expert_ids")  # chosen a second time, after other roundings, near-ties might differ
    gates = jnp.take_along_axis(scores, chosen, axis=-1)
    if config.normalize_gates:
        gates = gates / (gates.sum(-1, keepdims=True) + 1e-20)
    gates = jnp.where(real[..., None], gates * config.routed_scaling, 0.0)
    expert_ids = jnp.where(real[..., None], chosen, config.experts).astype(jnp.int32)
    return Routing(
        expert_ids,
        gates,
        expert_counts(expert_ids.reshape(-1, config.active_experts), config.experts),
        sequence_balance_loss(scores, expert_ids, real, config),
    )


def _limit_groups(choice: Array, config: ModelConfig) -> Array:
    """Masks with -inf the experts outside each token's best groups (by the sum of a group's two best scores)."""
    if config.expert_groups == 1:
        return choice
    groups = choice.reshape(*choice.shape[:-1], config.expert_groups, -1)
    best_two, _ = lax.top_k(groups, min(2, groups.shape[-1]))
    _, kept = lax.top_k(best_two.sum(-1), config.active_groups)
    keep = jax.nn.one_hot(kept, config.expert_groups, dtype=jnp.bool_).any(-2)
    return jnp.where(keep[..., None], groups, -jnp.inf).reshape(choice.shape)


def sequence_balance_loss(scores: Array, expert_ids: Array, real: Array, config: ModelConfig) -> Array:
    """Σ over rows of Σ_e f_e P_e (DeepSeek-V3, equations 17-20), without its coefficient.

    f_e is E/K times the fraction of the row's tokens routed to e, P_e the mean of e's normalised score; a perfectly
    balanced row gives 1. Padding counts nowhere and a row of padding gives 0. Of devices that share rows
    (``model.spread``), each gives the part of its tokens.

    Args:
        scores: ``[B, S, E]`` float32 sigmoid scores.
        expert_ids: ``[B, S, K]`` int32.
        real: ``[B, S]`` bool.
        config: the architecture.
    """
    tokens = jnp.maximum(sum_over_rows(real.sum(-1)), 1)[:, None].astype(jnp.float32)
    chosen = sum_over_rows(jax.vmap(lambda ids: expert_counts(ids, config.experts))(expert_ids)).astype(jnp.float32)
    fraction = chosen * (config.experts / config.active_experts) / tokens
    normalized = scores / (scores.sum(-1, keepdims=True) + 1e-20)
    mean_score = jnp.where(real[..., None], normalized, 0.0).sum(-2) / tokens
    return (lax.stop_gradient(fraction) * mean_score).sum()
