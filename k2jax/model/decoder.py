"""The decoder as a pure function over a dict of arrays: embed, scan over stacked layers, final norm.

Side outputs are returned, never stored: the per-head maximum logit that QK-Clip reads, the tokens each expert got, the
balance loss.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig, TrainConfig
from k2jax.model.feed_forward import Experts, moe, swiglu
from k2jax.model.gqa import gqa
from k2jax.model.mla import mla
from k2jax.model.norm import rms_norm
from k2jax.model.remat import Remat, named
from k2jax.model.rope import rotary_table
from k2jax.model.spread import embed, places_in_row, sum_parts
from k2jax.params import Specs, map_specs

Attend = Callable[[dict, Array, Array], tuple[Array, Array]]


class ModelStats(NamedTuple):
    """Statistics of one call, over its batch. Micro-batches and data ranks combine the first by max, others by sum.

    Attributes:
        max_logit: ``[L, H]`` float32, scaled and masked, in layer order; -inf where nothing was seen.
        expert_tokens: ``[L_moe, E]`` int32.
        balance_loss: ``[]`` float32, summed over rows and expert layers, without its coefficient.
        dropped_rows: ``[L_moe]`` int32, rows to another rank's experts that found no slot (``parallel.expert_slots``).
    """

    max_logit: Array
    expert_tokens: Array
    balance_loss: Array
    dropped_rows: Array


def combine_stats(a: ModelStats, b: ModelStats) -> ModelStats:
    """The statistics of two calls as if they had been one."""
    return ModelStats(jnp.maximum(a.max_logit, b.max_logit), *(x + y for x, y in zip(a[1:], b[1:], strict=True)))


def cast_params(params: dict, specs: Specs, dtype: jnp.dtype) -> dict:
    """The compute copy of the master weights. The router and its bias stay float32: near-ties decide routes."""
    return map_specs(lambda spec, p: p if spec.role in ("router", "router_bias") else p.astype(dtype), specs, params)


def forward(
    params: dict,
    tokens: Array,
    positions: Array | None,
    exit: Array | None,
    config: ModelConfig,
    *,
    remat: Remat | TrainConfig | str = "none",
    experts: Experts | None = None,
) -> tuple[Array, ModelStats]:
    """Hidden states after the final norm.

    Args:
        params: weights in compute dtype; inside a ``shard_map``, this device's part of them, see ``model.spread``.
        tokens: ``[B, S]`` int32.
        positions: ``[B, S]`` int32; None counts from 0.
        exit: ``[B, S]`` int32 mask vector of PackedBatch; None is causal without padding.
        config: the architecture.
        remat: what becomes of the layers' activations until the backward pass: a config's, or a policy by its name.
        experts: the routed experts where they are spread over devices, see ``feed_forward.moe``.

    Returns:
        ``[B, S, D]`` in compute dtype, and statistics.
    """
    places = jnp.broadcast_to(places_in_row(tokens), tokens.shape)
    rotary = rotary_table(places if positions is None else positions, config)
    real = jnp.ones(tokens.shape, jnp.bool_) if exit is None else exit > places
    attention = gqa if config.attention == "gqa" else mla

    def attend(params: dict, x: Array, layer: Array) -> tuple[Array, Array]:
        return attention(params, x, rotary, exit, config)

    embedded = embed(params["embed"], tokens)
    hidden, stats = run_layers(params, embedded, real, config, attend, remat, experts)
    return hidden, ModelStats(stats.extra, stats.expert_tokens, stats.balance_loss.sum(), stats.dropped_rows)


def run_layers(
    params: dict,
    hidden: Array,
    real: Array,
    config: ModelConfig,
    attend: Attend,
    remat: Remat | TrainConfig | str = "none",
    experts: Experts | None = None,
) -> tuple[Array, StackStats]:
    """Every layer and the final norm, with the attention that the caller brings.

    Args:
        params: weights in compute dtype; layers may be unstacked.
        hidden: embedded tokens ``[B, S, D]``.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.
        attend: ``(attention weights, normalised [B, S, D], layer number []) -> (output [B, S, D], extra)``.
        remat: as in ``forward``.
        experts: as in ``forward``.

    Returns:
        Hidden states ``[B, S, D]`` after the final norm, and the side outputs of all layers.
    """
    stacks, first = [], 0
    for group in ("dense", "moe"):
        if group in params:
            hidden, stats = run_stack(group, params[group], hidden, real, config, attend, remat, experts, first)
            stacks.append(stats)
            first += len(stats.extra)
    hidden = rms_norm(hidden, params["final_norm"], config.norm_eps)
    return hidden, StackStats(*(jnp.concatenate(parts) for parts in zip(*stacks, strict=True)))


class StackStats(NamedTuple):
    """Side outputs of a run of layers, per layer.

    Attributes:
        extra: what ``attend`` returned beside its output, ``[L, ...]``; in training the maximum logit per head.
        expert_tokens: ``[L, E]`` int32; ``[0, E]`` of dense layers.
        balance_loss: ``[L]`` float32; ``[0]`` of dense layers.
        dropped_rows: ``[L]`` int32; ``[0]`` of dense layers.
    """

    extra: Array
    expert_tokens: Array
    balance_loss: Array
    dropped_rows: Array


def run_stack(
    group: str,
    layers: dict | list[dict],
    hidden: Array,
    real: Array,
    config: ModelConfig,
    attend: Attend,
    remat: Remat | TrainConfig | str = "none",
    experts: Experts | None = None,
    first: int = 0,
) -> tuple[Array, StackStats]:
    """A run of layers of one kind: a whole group of the model, or a pipeline stage's part of it.

    Args:
        group: ``dense`` or ``moe``.
        layers: their weights in compute dtype, stacked or as a list.
        hidden: ``[B, S, D]``.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.
        attend: as in ``run_layers``.
        remat: as in ``forward``.
        experts: as in ``forward``.
        first: number of the first layer, for ``attend``.

    Returns:
        ``[B, S, D]`` and the layers' side outputs.
    """
    remat = Remat.of(remat)
    bound = {"attend": attend, "config": config, "store_fp8": remat.store_fp8}
    if group == "dense":
        step = functools.partial(_dense_layer, **bound)
    else:
        step = functools.partial(_moe_layer, real=real, experts=experts, **bound)
    hidden, (extra, *rest) = _walk(remat.checkpoint(step), hidden, layers, first)
    none = (jnp.zeros((0, config.experts), jnp.int32), jnp.zeros((0,), jnp.float32), jnp.zeros((0,), jnp.int32))
    return hidden, StackStats(extra, *(rest or none))


def _walk(step: Callable, hidden: Array, layers: dict | list[dict], first: int) -> tuple[Array, tuple]:
    """Every layer of a stack by ``lax.scan``, or of a list one after the other."""
    if isinstance(layers, dict):
        count = layers["attention_norm"].shape[0]
        return lax.scan(step, hidden, (layers, jnp.arange(first, first + count, dtype=jnp.int32)))
    outputs = []
    for number, layer in enumerate(layers, first):
        hidden, output = step(hidden, (layer, jnp.int32(number)))
        outputs.append(output)
    return hidden, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)


def unstack_layers(params: dict) -> dict:
    """The same weights with a list of layers in place of each stack, for ``run_layers``.

    XLA:CPU copies a layer out of its stack each time the scan comes to it, which is half of a small decoding step.
    """
    return {
        group: [jax.tree.map(lambda leaf, i=i: leaf[i], part) for i in range(part["attention_norm"].shape[0])]
        if group in ("dense", "moe")
        else part
        for group, part in params.items()
    }


def head_weight(params: dict) -> Array:
    """The output projection ``[V, D]``: the head, or the embedding it is tied to."""
    return params["head"] if "head" in params else params["embed"]


def _attend(x: Array, params: dict, layer: Array, attend, config: ModelConfig) -> tuple[Array, Array, Array]:
    """Attention with its residual; then the normalised input of the feed-forward."""
    x = named(x, "layer_input")
    normed = named(rms_norm(x, params["attention_norm"], config.norm_eps), "attention_input")
    attended, extra = attend(params["attention"], normed, layer)
    x = named(x + sum_parts(attended, x), "layer_middle")
    return x, named(rms_norm(x, params["ffn_norm"], config.norm_eps), "ffn_input"), extra


def _dense_layer(x: Array, scanned: tuple[dict, Array], *, attend, config: ModelConfig, store_fp8):
    params, layer = scanned
    x, normed, extra = _attend(x, params, layer, attend, config)
    with jax.named_scope("dense_ffn"):
        return x + sum_parts(swiglu(params["ffn"], normed, "dense", store_fp8), x), (extra,)


def _moe_layer(x: Array, scanned: tuple[dict, Array], *, attend, real, config: ModelConfig, experts, store_fp8):
    params, layer = scanned
    x, normed, extra = _attend(x, params, layer, attend, config)
    out, routing, dropped = moe(params, normed, real, config, experts, store_fp8)
    return x + sum_parts(out, x), (extra, routing.counts, routing.balance_loss, dropped)
