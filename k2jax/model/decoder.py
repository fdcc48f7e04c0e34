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

from k2jax.config.schema import ModelConfig
from k2jax.model.attention import Attend, make_attend
from k2jax.model.collectives import embed, reduce_tensor, token_indices
from k2jax.model.feed_forward import Experts, moe, swiglu
from k2jax.model.norm import rms_norm
from k2jax.model.remat import NO_REMAT, Remat, named
from k2jax.params import TEXT, Specs, map_specs


class ModelStats(NamedTuple):
    """Statistics of one call, over its batch. Micro-batches and data ranks combine the first by max, others by sum.

    Attributes:
        max_logit: by group of layers, ``params.TEXT`` and ``params.VISION``, ``[layers, heads]`` float32, scaled and
            masked, in layer order; -inf where nothing was seen.
        expert_tokens: ``[L_moe, E]`` int32.
        balance_loss: ``[]`` float32, summed over rows and expert layers, without its coefficient.
        dropped_rows: ``[L_moe]`` int32, rows to another rank's experts that found no slot (``parallel.expert_slots``).
    """

    max_logit: dict[str, Array]
    expert_tokens: Array
    balance_loss: Array
    dropped_rows: Array


class StackStats(NamedTuple):
    """Side outputs of a run of layers, per layer.

    Attributes:
        extra: what ``attend`` returned beside its output, ``[L, ...]``; in training the maximum logit per head.
        expert_tokens: ``[L, E]`` int32; ``[0, E]`` of dense layers.
        balance_loss: ``[L]`` float32; ``[0]`` of dense layers.
        dropped_rows: ``[L]`` int32; ``[0]`` of dense layers.
        expert_ids: ``[L, B, S, K]`` int32, the chosen experts, E on padding; ``[0, B, S, K]`` of dense layers. None
            unless they are asked for.
    """

    extra: Array
    expert_tokens: Array
    balance_loss: Array
    dropped_rows: Array
    expert_ids: Array | None = None


def combine_stats(a: ModelStats, b: ModelStats) -> ModelStats:
    """Combines the statistics of two calls into those of one call over both batches."""
    max_logit = jax.tree.map(jnp.maximum, a.max_logit, b.max_logit)
    return ModelStats(max_logit, *(x + y for x, y in zip(a[1:], b[1:], strict=True)))


def cast_params(params: dict, specs: Specs, dtype: jnp.dtype) -> dict:
    """Casts the master weights to the compute dtype. The router and its bias stay float32: near-ties decide routes."""
    return map_specs(lambda spec, p: p if spec.role in ("router", "router_bias") else p.astype(dtype), specs, params)


def forward(
    params: dict,
    tokens: Array,
    positions: Array | None,
    exit: Array | None,
    config: ModelConfig,
    *,
    remat: Remat = NO_REMAT,
    experts: Experts | None = None,
    replayed: Array | None = None,
    media: tuple[Array, Array] | None = None,
) -> tuple[Array, ModelStats]:
    """Computes hidden states after the final norm.

    Args:
        params: weights in compute dtype; inside a ``shard_map``, this device's part of them, see ``model.collectives``.
        tokens: ``[B, S]`` int32.
        positions: ``[B, S]`` int32; None counts from 0.
        exit: ``[B, S]`` int32 mask vector of PackedBatch; None is causal without padding.
        config: the architecture.
        remat: what each layer keeps for the backward pass.
        experts: the routed experts where they are spread over devices, see ``feed_forward.moe``.
        replayed: ``[B, S, expert layers, K]``, the chosen experts of PackedBatch; None leaves them to the router.
        media: features ``[..., D]`` of images and clips, and int32 ``[B, S]``, which of them, counted over all their
            axes, stands for the token's embedding, or -1 for text. None is text alone.

    Returns:
        ``[B, S, D]`` in compute dtype, and statistics.
    """
    index_BS = jnp.broadcast_to(token_indices(tokens), tokens.shape)
    real_BS = jnp.ones(tokens.shape, jnp.bool_) if exit is None else exit > index_BS
    attend = make_attend(config, index_BS if positions is None else positions, exit)
    x_BSD = embed(params["embed"], tokens)
    if media is not None:
        x_BSD = place_features(x_BSD, *media)
    settings = {"config": config, "attend": attend, "remat": remat, "experts": experts, "replayed": replayed}
    x_BSD, stats = run_layers(params, x_BSD, real_BS, **settings)
    return x_BSD, ModelStats({TEXT: stats.extra}, stats.expert_tokens, stats.balance_loss.sum(), stats.dropped_rows)


def place_features(embedded: Array, features: Array, index: Array) -> Array:
    """Puts features where tokens stand for images and clips.

    Args:
        embedded: embedded tokens ``[B, S, D]``.
        features: ``[..., D]``.
        index: int32 ``[B, S]``, which feature, counted over all their axes; -1 keeps the token's embedding.

    Returns:
        ``[B, S, D]`` in the dtype of ``embedded``.
    """
    flat = features.reshape(-1, features.shape[-1]).astype(embedded.dtype)
    return jnp.where((index >= 0)[..., None], flat[jnp.maximum(index, 0)], embedded)


def run_layers(
    params: dict,
    hidden: Array,
    real: Array,
    *,
    config: ModelConfig,
    attend: Attend,
    remat: Remat = NO_REMAT,
    experts: Experts | None = None,
    replayed: Array | None = None,
    return_experts: bool = False,
) -> tuple[Array, StackStats]:
    """Runs every layer and the final norm, with the caller's attention.

    Args:
        params: weights in compute dtype; layers may be unstacked.
        hidden: embedded tokens ``[B, S, D]``.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.
        attend: attention, see ``attention.Attend``.
        remat: as in ``forward``.
        experts: as in ``forward``.
        replayed: as in ``forward``.
        return_experts: whether the side outputs include the chosen experts.

    Returns:
        Hidden states ``[B, S, D]`` after the final norm, and the side outputs of all layers.
    """
    settings = {"config": config, "attend": attend, "remat": remat, "experts": experts}
    settings |= {"return_experts": return_experts, "replayed": replayed}
    stacks, first = [], 0
    for group in ("dense", "moe"):
        if group in params:
            hidden, stats = run_stack(group, params[group], hidden, real, first=first, **settings)
            stacks.append(stats)
            first += len(stats.extra)
    hidden = rms_norm(hidden, params["final_norm"], config.norm_eps)
    return hidden, jax.tree.map(lambda *parts: jnp.concatenate(parts), *stacks)


def run_stack(
    group: str,
    layers: dict | list[dict],
    hidden: Array,
    real: Array,
    *,
    config: ModelConfig,
    attend: Attend,
    remat: Remat = NO_REMAT,
    experts: Experts | None = None,
    replayed: Array | None = None,
    first: int = 0,
    return_experts: bool = False,
) -> tuple[Array, StackStats]:
    """Runs consecutive layers of one kind: a whole group of the model, or a pipeline stage's part of it.

    Args:
        group: ``dense`` or ``moe``.
        layers: their weights in compute dtype, stacked or as a list.
        hidden: ``[B, S, D]``.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.
        attend: attention, see ``attention.Attend``.
        remat: as in ``forward``.
        experts: as in ``forward``.
        replayed: as in ``forward``, of these layers; not read by dense ones.
        first: number of the first layer, for ``attend``.
        return_experts: as in ``run_layers``.

    Returns:
        ``[B, S, D]`` and the layers' side outputs.
    """
    bound = {"attend": attend, "config": config, "store_fp8": remat.store_fp8}
    if group == "dense":
        layer = functools.partial(_dense_layer, **bound)
    else:
        layer = functools.partial(_moe_layer, real=real, experts=experts, return_experts=return_experts, **bound)
    by_layer = None if replayed is None or group == "dense" else jnp.moveaxis(replayed, 2, 0)
    hidden, (extra, *rest) = _walk(remat.checkpoint(layer), hidden, layers, by_layer, first=first)
    if not rest:
        ids = jnp.zeros((0, *real.shape, config.moe.active_experts), jnp.int32) if return_experts else None
        rest = jnp.zeros((0, config.moe.experts), jnp.int32), jnp.zeros(0), jnp.zeros(0, jnp.int32), ids
    return hidden, StackStats(extra, *rest)


def _walk(
    step: Callable, hidden: Array, layers: dict | list[dict], replayed: Array | None, *, first: int
) -> tuple[Array, tuple]:
    """Runs the layers of a stack by ``lax.scan``, or those of a list one after the other."""
    if isinstance(layers, dict):
        count = layers["attention_norm"].shape[0]
        return lax.scan(step, hidden, (layers, jnp.arange(first, first + count, dtype=jnp.int32), replayed))
    outputs = []
    for index, layer in enumerate(layers):
        chosen = None if replayed is None else replayed[index]
        hidden, output = step(hidden, (layer, jnp.int32(first + index), chosen))
        outputs.append(output)
    return hidden, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)


def head_weight(params: dict) -> Array:
    """Returns the output projection ``[V, D]``: the head, or the embedding that it is tied to."""
    return params["head"] if "head" in params else params["embed"]


def _attend(
    x_BSD: Array, params: dict, number: Array, attend: Attend, config: ModelConfig
) -> tuple[Array, Array, Array]:
    """Adds attention to the residual stream; returns it, the normalised input of the feed-forward and the extra."""
    x_BSD = named(x_BSD, "layer_input")
    normed_BSD = named(rms_norm(x_BSD, params["attention_norm"], config.norm_eps), "attention_input")
    attended_BSD, extra = attend(params["attention"], normed_BSD, number)
    x_BSD = named(x_BSD + reduce_tensor(attended_BSD, x_BSD), "layer_middle")
    return x_BSD, named(rms_norm(x_BSD, params["ffn_norm"], config.norm_eps), "ffn_input"), extra


def _dense_layer(
    x_BSD: Array, scanned: tuple[dict, Array, None], *, attend: Attend, config: ModelConfig, store_fp8: tuple[str, ...]
) -> tuple[Array, tuple]:
    params, number, _ = scanned
    x_BSD, normed_BSD, extra = _attend(x_BSD, params, number, attend, config)
    with jax.named_scope("dense_ffn"):
        out_BSD = swiglu(params["ffn"], normed_BSD, "dense", store_fp8)
        return x_BSD + reduce_tensor(out_BSD, x_BSD), (extra,)


def _moe_layer(
    x_BSD: Array,
    scanned: tuple[dict, Array, Array | None],
    *,
    attend: Attend,
    real: Array,
    config: ModelConfig,
    experts: Experts | None,
    store_fp8: tuple[str, ...],
    return_experts: bool,
) -> tuple[Array, tuple]:
    params, number, replayed_BSK = scanned
    x_BSD, normed_BSD, extra = _attend(x_BSD, params, number, attend, config)
    options = {"store_fp8": store_fp8, "replayed": replayed_BSK}
    out_BSD, routing, dropped = moe(params, normed_BSD, real, config, experts, **options)
    ids = routing.expert_ids if return_experts else None
    return x_BSD + reduce_tensor(out_BSD, x_BSD), (extra, routing.counts, routing.balance_loss, dropped, ids)
