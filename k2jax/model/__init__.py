"""The text model: a weight table, pure functions over it, and a flax.linen module as the public face.

Kimi K2's family, and dense decoders with grouped-query attention.
"""

from k2jax.model.counts import active_parameters, total_parameters, training_flops_per_token
from k2jax.model.decoder import (
    ModelStats,
    cast_params,
    combine_stats,
    forward,
    head_weight,
    run_layers,
    run_stack,
    unstack_layers,
)
from k2jax.model.head import token_logprobs
from k2jax.model.module import K2, ModelOutput
from k2jax.model.specs import model_specs

__all__ = [
    "K2",
    "ModelOutput",
    "ModelStats",
    "active_parameters",
    "cast_params",
    "combine_stats",
    "forward",
    "head_weight",
    "model_specs",
    "run_layers",
    "run_stack",
    "token_logprobs",
    "total_parameters",
    "training_flops_per_token",
    "unstack_layers",
]
