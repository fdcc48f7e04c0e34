"""What a pipeline stage computes: its chunks of layers, and its slice of what all stages compute together.

The embedding with the leading dense layers, and the final norm, the head and the loss run on all stages at once: each
holds a slice of the vocabulary, of the leading dense layers' heads and of their hidden width. Sums over the mesh axis
``stage`` make their results whole and equal everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import NO_EXPERTS, PackedBatch
from k2jax.config.schema import Config
from k2jax.model import head_weight, run_stack
from k2jax.model.attention import make_attend
from k2jax.model.collectives import embed, token_indices
from k2jax.model.decoder import StackStats
from k2jax.model.feed_forward import Experts
from k2jax.model.norm import rms_norm
from k2jax.model.remat import Remat
from k2jax.parallel.accumulate import FEATURES
from k2jax.parallel.objective import LossShares, Objective
from k2jax.sharding import STAGE


class ChunkStats(NamedTuple):
    """Statistics of one chunk and micro-batch, on one device.

    Attributes:
        max_logit: ``[layers, H]`` float32; -inf where nothing was seen.
        expert_tokens: ``[layers, E]`` int32, or ``[0, E]``.
        dropped_rows: ``[layers]`` int32, or ``[0]``.
    """

    max_logit: Array
    expert_tokens: Array
    dropped_rows: Array


class Stage(NamedTuple):
    """Pure functions of one device's part of the weights and of one micro-batch ``[B, S]``.

    Attributes:
        layers: ``(layers' weights, x_BSD, micro-batch) -> ((y_BSD, balance loss []), ChunkStats)``.
        embed: ``(outside weights, micro-batch, shown) -> (x_BSD, max_logit [dense layers, H / stages] float32)``, with
            ``shown_features`` of both.
        loss: ``(outside weights, y_BSD, micro-batch) -> LossShares``.
        balance: the coefficient of the balance loss.
        keeps: whether layers keep more than a chunk's input from its forward to its backward.
    """

    layers: Callable[[Any, Array, PackedBatch], tuple[tuple[Array, Array], ChunkStats]]
    embed: Callable[[Any, PackedBatch, dict[str, Array]], tuple[Array, Array]]
    loss: Callable[[Any, Array, PackedBatch], LossShares]
    balance: float
    keeps: bool


def make_stage(config: Config, layer_group: str, experts: Experts | None, objective: Objective) -> Stage:
    """The functions of a stage of a model whose group of layers ``layer_group`` is pipelined."""
    return Stage(
        functools.partial(_layers, config=config, layer_group=layer_group, experts=experts),
        functools.partial(_embed, config=config, layer_group=layer_group),
        functools.partial(_loss, config=config, objective=objective),
        objective.balance,
        bool(config.train.keep_across),
    )


def own_experts(batch: PackedBatch, rounds: int, layers: int) -> PackedBatch:
    """The batch with the replayed experts of this stage's layers alone, ``[M, B, S, rounds, layers, K]``.

    Layer i of round v is layer ``(v stages + rank) layers + i`` of the model's expert layers; beyond the last one
    are layers of padding, whose router chooses.

    Args:
        batch: ``[M, B, S]``.
        rounds: chunks of a stage.
        layers: of a chunk.
    """
    if batch.experts is None:
        return batch
    stages, recorded = lax.axis_size(STAGE), batch.experts.shape[3]
    missing = [(0, 0)] * 3 + [(0, stages * rounds * layers - recorded), (0, 0)]
    padded = jnp.pad(batch.experts, missing, constant_values=NO_EXPERTS)
    by_chunk = padded.reshape(*padded.shape[:3], rounds, stages, layers, padded.shape[-1])
    return batch.replace(experts=lax.dynamic_index_in_dim(by_chunk, lax.axis_index(STAGE), 4, keepdims=False))


def micro_batch(batch: PackedBatch, index: Array, chunk_round: Array | int = 0) -> PackedBatch:
    """Micro-batch ``index`` of ``[M, B, S]``; -1 gives only padding to attention and routing (its loss is not run).

    Of ``own_experts`` it has those of one round, ``[B, S, layers, K]``.
    """
    start = jnp.maximum(index, 0)
    part = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, start, 0, keepdims=False), batch)
    if part.experts is not None:
        chunk = lax.dynamic_index_in_dim(part.experts, jnp.maximum(chunk_round, 0), 2, keepdims=False)
        part = part.replace(experts=chunk)
    padding = jnp.broadcast_to(token_indices(part.exit), part.exit.shape)
    return part.replace(exit=jnp.where(index < 0, padding, part.exit))


def _layers(
    weights: Any, x_BSD: Array, micro: PackedBatch, *, config: Config, layer_group: str, experts: Experts | None
) -> tuple[tuple[Array, Array], ChunkStats]:
    remat = Remat.from_config(config.train, chunk=True)
    if remat.across and len(weights["attention_norm"]) == 1:  # no loop, whose residuals would have its input once more
        weights = [jax.tree.map(lambda leaf: leaf[0], weights)]
    y_BSD, stats = _run(layer_group, weights, x_BSD, micro, config=config, remat=remat, experts=experts)
    return (y_BSD, stats.balance_loss.sum()), ChunkStats(stats.extra, stats.expert_tokens, stats.dropped_rows)


def shown_features(outside: Any, micro: PackedBatch) -> dict[str, Array]:
    """The features that tokens show, ``[B, S, D]``, by their name among the weights; nothing without images.

    Each stage has some rows of the table, as it has of the embedding.
    """
    return {} if micro.media is None else {FEATURES: embed(outside[FEATURES], micro.media, STAGE)}


def _embed(
    outside: Any, micro: PackedBatch, shown: dict[str, Array], *, config: Config, layer_group: str
) -> tuple[Array, Array]:
    x_BSD = embed(outside["embed"], micro.tokens, STAGE)
    if micro.media is not None:
        x_BSD = jnp.where((micro.media >= 0)[..., None], shown[FEATURES].astype(x_BSD.dtype), x_BSD)
    if layer_group == "dense" or "dense" not in outside:
        return x_BSD, jnp.zeros((0, 0), jnp.float32)
    remat = Remat.from_config(config.train)
    x_BSD, stats = _run("dense", outside["dense"], x_BSD, micro, config=config, remat=remat)
    return x_BSD, stats.extra


def _run(
    group: str,
    weights: Any,
    x_BSD: Array,
    micro: PackedBatch,
    *,
    config: Config,
    remat: Remat,
    experts: Experts | None = None,
) -> tuple[Array, StackStats]:
    return run_stack(
        group,
        weights,
        x_BSD,
        micro.exit > token_indices(micro.exit),
        config=config.model,
        attend=make_attend(config.model, micro.positions, micro.exit),
        remat=remat,
        experts=experts,
        replayed=micro.experts,
    )


def _loss(outside: Any, y_BSD: Array, micro: PackedBatch, *, config: Config, objective: Objective) -> LossShares:
    hidden_BSD = rms_norm(y_BSD, outside["final_norm"], config.model.norm_eps)
    return objective.shares(hidden_BSD, head_weight(outside), micro, axis_name=STAGE, vocab=config.model.vocab)
