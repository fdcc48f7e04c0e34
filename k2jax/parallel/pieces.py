"""What a pipeline is made of: a chunk of layers for one stage, and the entrance and exit that all stages share.

Entrance and exit run on all stages at once: each holds a slice of the vocabulary, of the leading dense layers' heads
and of their hidden width, and sums over ``stage`` make the results whole and equal everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.model import head_weight, run_stack, token_logprobs
from k2jax.model.feed_forward import Experts, swiglu
from k2jax.model.gqa import gqa
from k2jax.model.mla import mla
from k2jax.model.norm import rms_norm
from k2jax.model.rope import rotary_table
from k2jax.model.spread import embed, places_in_row

STAGE = "stage"


class ChunkStats(NamedTuple):
    """Of one chunk and micro-batch, on one device.

    Attributes:
        max_logit: ``[layers, H]`` float32; -inf where nothing was seen.
        expert_tokens: ``[layers, E]`` int32, or ``[0, E]``.
        dropped_rows: ``[layers]`` int32, or ``[0]``.
    """

    max_logit: Array
    expert_tokens: Array
    dropped_rows: Array


class Pieces(NamedTuple):
    """Pure functions of one device's part of weights and of one micro-batch ``[B, S]``.

    Attributes:
        chunk: ``(layers' weights, x [B, S, D], micro-batch) -> ((y [B, S, D], balance loss []), ChunkStats)``.
        entrance: ``(outer weights, micro-batch) -> (x [B, S, D], max_logit [dense layers, H / S] float32)``.
        exit: ``(outer weights, y [B, S, D], micro-batch) -> weighted sum of nll []``.
    """

    chunk: Callable[[Any, Array, PackedBatch], tuple[tuple[Array, Array], ChunkStats]]
    entrance: Callable[[Any, PackedBatch], tuple[Array, Array]]
    exit: Callable[[Any, Array, PackedBatch], Array]


def make_pieces(config: Config, body: str, experts: Experts | None) -> Pieces:
    """The pieces of a model whose group of layers ``body`` is pipelined."""
    return Pieces(
        functools.partial(_chunk, config=config, body=body, experts=experts),
        functools.partial(_entrance, config=config, body=body),
        functools.partial(_exit, config=config),
    )


def micro_batch(batch: PackedBatch, index: Array) -> PackedBatch:
    """Micro-batch ``index`` of ``[M, B, S]``; for -1 nothing but padding, which is routed and counted nowhere."""
    at = jnp.maximum(index, 0)
    part = PackedBatch(
        **{name: lax.dynamic_index_in_dim(getattr(batch, name), at, 0, keepdims=False) for name in _fields(batch)}
    )
    places = jnp.broadcast_to(places_in_row(part.exit), part.exit.shape)
    idle = index < 0
    return part.replace(exit=jnp.where(idle, places, part.exit), weights=jnp.where(idle, 0.0, part.weights))


def _fields(batch: PackedBatch) -> list[str]:
    return list(type(batch).__dataclass_fields__)


def _attention(config: Config, micro: PackedBatch) -> Callable[[dict, Array, Array], tuple[Array, Array]]:
    rotary = rotary_table(micro.positions, config.model)
    attention = gqa if config.model.attention == "gqa" else mla
    return lambda params, x, layer: attention(params, x, rotary, micro.exit, config.model)


def _chunk(weights: Any, x: Array, micro: PackedBatch, *, config: Config, body: str, experts: Experts | None):
    real = micro.exit > places_in_row(micro.exit)
    attend = _attention(config, micro)
    y, stats = run_stack(body, weights, x, real, config.model, attend, config.train, experts)
    return (y, stats.balance_loss.sum()), ChunkStats(stats.extra, stats.expert_tokens, stats.dropped_rows)


def _entrance(outer: Any, micro: PackedBatch, *, config: Config, body: str) -> tuple[Array, Array]:
    x = embed(outer["embed"], micro.tokens, STAGE)
    if body == "dense" or "dense" not in outer:
        return x, jnp.zeros((0, 0), jnp.float32)
    attend = _attention(config, micro)

    def layer(x: Array, params: Any) -> tuple[Array, Array]:
        normed = rms_norm(x, params["attention_norm"], config.model.norm_eps)
        attended, max_logit = attend(params["attention"], normed, jnp.int32(0))
        x = x + lax.psum(attended, STAGE)
        normed = rms_norm(x, params["ffn_norm"], config.model.norm_eps)
        return x + lax.psum(swiglu(params["ffn"], normed, "dense"), STAGE), max_logit

    return lax.scan(layer, x, outer["dense"])


def _exit(outer: Any, y: Array, micro: PackedBatch, *, config: Config) -> Array:
    hidden = rms_norm(y, outer["final_norm"], config.model.norm_eps)
    logprobs = token_logprobs(
        hidden, micro.parent, micro.tokens, head_weight(outer), axis_name=STAGE, vocab=config.model.vocab
    )
    return -(micro.weights * logprobs).sum()
