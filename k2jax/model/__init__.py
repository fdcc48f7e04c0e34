"""The text model of the Kimi K2 family and of dense decoders with grouped-query attention.

It has a weight table, pure functions over a dict of arrays, and a flax.linen module as the public face.

The suffix of an array's name lists its dimensions, outermost first, as in ``pallas_kernels``; 1 is a dimension of
size 1. Arguments of public functions have no suffix: their docstrings give the shapes.

| letter | dimension | letter | dimension |
| --- | --- | --- | --- |
| B | batch: rows of tokens | E | experts; in attention, channels of one head |
| S | sequence: tokens of a row | K | active experts of a token |
| T | tokens of all rows; in decoding, new tokens of a sequence | F | width of one expert |
| D | width of the model | L | layers |
| H | attention heads | V | vocabulary |
| G | groups of experts; in attention, key heads | R | latent of MLA, with the rope key before it is split off |
| N | sequences in decoding | C | cached tokens of a sequence |
| P | pages of a sequence | W | numbers that a cache keeps per token |
| Q | queries of a sequence: heads times new tokens | | |
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
)
from k2jax.model.head import token_logprobs, token_scores
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
    "token_scores",
    "total_parameters",
    "training_flops_per_token",
]
