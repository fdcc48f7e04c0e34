"""Parameter and FLOP counts, from the weight table."""

from __future__ import annotations

from k2jax.config.schema import ModelConfig
from k2jax.model.specs import model_specs
from k2jax.params import count


def total_parameters(config: ModelConfig) -> int:
    """Counts all parameters, without router biases."""
    return count(model_specs(config))


def active_parameters(config: ModelConfig, *, embeddings: bool = True) -> int:
    """Counts the parameters that one token uses, optionally without embedding and head."""
    specs = model_specs(config)
    routed = count(specs, lambda spec: "experts" in spec.stack)
    outer = 0 if embeddings else count(specs, lambda spec: spec.role in ("embedding", "head"))
    return count(specs) - outer - routed + routed * config.moe.active_experts // config.moe.experts


def training_flops_per_token(config: ModelConfig, sequence: int) -> float:
    """Counts model FLOPs per token, forward and backward: 6 per active weight in a matrix product, and attention.

    The head counts, the embedding lookup does not. Attention counts the visible half of the S x S scores.

    Args:
        config: the architecture.
        sequence: tokens per row.
    """
    head = config.vocab * config.d_model
    matrices = active_parameters(config, embeddings=False) + head
    widths = config.attention_widths
    attention = config.heads * (widths.key_dim + widths.value_dim) * sequence / 2
    return 6.0 * matrices + 6.0 * config.layers * attention
