"""Sigmoid routing with group limits (DeepSeek-V3, section 2.1.2) and the sequence-level balance loss."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig, MoEConfig
from k2jax.model.collectives import reduce_sequence
from k2jax.model.remat import named
from k2jax.model.selection_noise import noisy_bias
from pallas_kernels.routed_experts import expert_counts


class Routing(NamedTuple):
    """The experts that each token goes to.

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
def route(
    weight: Array, bias: Array, x: Array, real: Array, config: ModelConfig, replayed: Array | None = None
) -> Routing:
    """Chooses experts by biased scores and weighs them by unbiased ones, all in float32.

    Args:
        weight: ``[D, E]``.
        bias: ``[E]`` float32 selection bias; it gets no gradient, balancing moves it.
        x: ``[B, S, D]``, normalised.
        real: ``[B, S]`` bool, False on padding: routed nowhere and counted nowhere.
        config: the architecture.
        replayed: ``[B, S, K]`` integers, experts that were chosen before, negative where they are chosen here. Their
            gates, and the gradient, come from the scores that they have here.
    """
    logits_BSE = jnp.einsum(
        "bsd,de->bse", x.astype(jnp.float32), weight.astype(jnp.float32), precision=lax.Precision.HIGHEST
    )
    scores_BSE = named(jax.nn.sigmoid(logits_BSE), "router_scores")
    selection_bias = noisy_bias(lax.stop_gradient(bias), scores_BSE.shape)
    biased_BSE = _limit_groups(lax.stop_gradient(scores_BSE) + selection_bias, config.moe)
    _, ids_BSK = lax.top_k(biased_BSE, config.moe.active_experts)
    if replayed is not None:
        ids_BSK = jnp.where(replayed >= 0, replayed.astype(ids_BSK.dtype), ids_BSK)
    ids_BSK = named(ids_BSK, "expert_ids")  # chosen a second time, after other roundings, near-ties might differ
    gates_BSK = jnp.take_along_axis(scores_BSE, ids_BSK, axis=-1)
    if config.moe.normalize_gates:
        gates_BSK = gates_BSK / (gates_BSK.sum(-1, keepdims=True) + 1e-20)
    gates_BSK = jnp.where(real[..., None], gates_BSK * config.moe.routed_scaling, 0.0)
    ids_BSK = jnp.where(real[..., None], ids_BSK, config.moe.experts).astype(jnp.int32)
    return Routing(
        ids_BSK,
        gates_BSK,
        expert_counts(ids_BSK.reshape(-1, config.moe.active_experts), config.moe.experts),
        sequence_balance_loss(scores_BSE, ids_BSK, real, config.moe),
    )


def _limit_groups(scores_BSE: Array, moe: MoEConfig) -> Array:
    """Masks with -inf the experts outside each token's best groups (by the sum of a group's two best scores)."""
    if moe.expert_groups == 1:
        return scores_BSE
    grouped_BSGE = scores_BSE.reshape(*scores_BSE.shape[:-1], moe.expert_groups, moe.experts // moe.expert_groups)
    best_two, _ = lax.top_k(grouped_BSGE, min(2, grouped_BSGE.shape[-1]))
    _, group_ids = lax.top_k(best_two.sum(-1), moe.active_groups)
    keep_BSG = jax.nn.one_hot(group_ids, moe.expert_groups, dtype=jnp.bool_).any(-2)
    return jnp.where(keep_BSG[..., None], grouped_BSGE, -jnp.inf).reshape(scores_BSE.shape)


def sequence_balance_loss(scores: Array, expert_ids: Array, real: Array, moe: MoEConfig) -> Array:
    """Sums Σ_e f_e P_e over rows (DeepSeek-V3, equations 17-20), without its coefficient.

    f_e is E/K times the fraction of the row's tokens routed to e, P_e the mean of e's normalised score; a perfectly
    balanced row gives 1. Padding counts nowhere and a row of padding gives 0. Where devices share the tokens of a row
    (``collectives``), each returns the part of its own tokens.

    Args:
        scores: ``[B, S, E]`` float32 sigmoid scores.
        expert_ids: ``[B, S, K]`` int32.
        real: ``[B, S]`` bool.
        moe: the experts' configuration.
    """
    tokens_B1 = jnp.maximum(reduce_sequence(real.sum(-1)), 1)[:, None].astype(jnp.float32)
    counts_BE = reduce_sequence(jax.vmap(lambda ids: expert_counts(ids, moe.experts))(expert_ids)).astype(jnp.float32)
    fraction_BE = counts_BE * (moe.experts / moe.active_experts) / tokens_B1
    normalized_BSE = scores / (scores.sum(-1, keepdims=True) + 1e-20)
    mean_BE = jnp.where(real[..., None], normalized_BSE, 0.0).sum(-2) / tokens_B1
    return (lax.stop_gradient(fraction_BE) * mean_BE).sum()
