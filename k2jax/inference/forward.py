"""The model over a paged cache: a chunk of new tokens per sequence, the rest of each sequence read from its pages."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from k2jax.config.schema import ModelConfig
from k2jax.inference.attend import Visible, cache_width, gqa_cached, mla_cached
from k2jax.inference.mesh import CACHE, ROWS, make_experts, param_specs
from k2jax.model import head_weight, run_layers, token_logprobs
from k2jax.model.feed_forward import Experts
from k2jax.model.rope import rotary_table
from pallas_kernels.implementation import resolve

LANES = 128  # numbers in a row of a TPU's memory tile
SCRATCH_PAGE = 0  # takes the writes of padding; no sequence owns it


class Chunk(NamedTuple):
    """New tokens of N sequences.

    Attributes:
        tokens: int32 ``[N, T]``, left-aligned.
        count: int32 ``[N]``, how many of a row are real; 0 is an empty row.
        start: int32 ``[N]``, tokens of the sequence that are in the cache already.
        pages: int32 ``[N, P]``, pages of the sequence in order, SCRATCH_PAGE beyond them; they hold the old tokens
            and have room for the new.
    """

    tokens: Array
    count: Array
    start: Array
    pages: Array


def cache_shape(config: ModelConfig, pages: int, page_size: int) -> tuple[int, int, int, int]:
    """``[L, pages, page_size, W]``; for MLA's kernel W is whole lanes, the room that it takes on a TPU anyway."""
    width = cache_width(config)
    if resolve(config.kernels) != "xla" and config.attention == "mla":
        width += -width % LANES
    return config.layers, pages, page_size, width


def empty_cache(config: ModelConfig, pages: int, page_size: int, dtype: Any, mesh: Mesh | None = None) -> Array:
    """Zeros of ``cache_shape``, the pages in equal parts on the devices of a mesh."""
    make = functools.partial(jnp.zeros, cache_shape(config, pages, page_size), dtype)
    return jax.jit(make, out_shardings=NamedSharding(mesh, CACHE))() if mesh else make()


def forward_cached(
    params: dict, cache: Array, chunk: Chunk, config: ModelConfig, experts: Experts | None = None
) -> tuple[Array, Array]:
    """Runs the new tokens and writes them to the cache.

    Args:
        params: weights in compute dtype.
        cache: ``[L, pages, page_size, W]``; donate it.
        chunk: what is new.
        config: the architecture.
        experts: the routed experts where they are spread over devices, see ``feed_forward.moe``.

    Returns:
        Hidden states ``[N, T, D]`` after the final norm (meaningless on padding), and the cache.
    """
    page_size = cache.shape[2]
    step = jnp.arange(chunk.tokens.shape[1], dtype=jnp.int32)
    positions_NT = chunk.start[:, None] + step
    real_NT = step < chunk.count[:, None]
    rotary = rotary_table(positions_NT, config)
    among_new = (step[:, None] >= step) & real_NT[:, None]
    attention = gqa_cached if config.attention == "gqa" else mla_cached

    def attend(weights: dict, x: Array, layer: Array) -> tuple[Array, Array]:
        return attention(weights, x, rotary, Visible(cache, layer, chunk.pages, chunk.start, among_new), config)

    hidden, stats = run_layers(params, params["embed"][chunk.tokens], real_NT, config, attend, experts=experts)
    # Written after the last layer has read: XLA would otherwise copy the whole cache to be free in its order.
    hidden, new_LNTW = lax.optimization_barrier((hidden, stats.extra))
    column = jnp.minimum(positions_NT // page_size, chunk.pages.shape[1] - 1)
    page = jnp.where(real_NT, jnp.take_along_axis(chunk.pages, column, axis=1), SCRATCH_PAGE)
    return hidden, _write(cache, new_LNTW, page * page_size + positions_NT % page_size)


def _write(cache: Array, new_LNTW: Array, place_NT: Array) -> Array:
    """The cache with new vectors at places of its pages, the same in every layer.

    As rows of a matrix: a scatter into four axes makes XLA:TPU copy the cache to another layout and back.
    """
    layers, pages, size, width = cache.shape
    new = jnp.pad(new_LNTW, ((0, 0), (0, 0), (0, 0), (0, width - new_LNTW.shape[-1]))).astype(cache.dtype)
    rows = jnp.arange(layers)[:, None, None] * (pages * size) + place_NT
    return cache.reshape(-1, width).at[rows].set(new).reshape(cache.shape)


@functools.partial(jax.jit, static_argnames=("config", "prompt_logprobs", "mesh"), donate_argnames=("cache",))
def run_chunk(
    params: dict,
    cache: Array,
    chunk: Chunk,
    targets: Array,
    config: ModelConfig,
    prompt_logprobs: bool,
    mesh: Mesh | None = None,
) -> tuple[Array, Array, Array]:
    """``forward_cached`` and the head, on one device or on all of a mesh.

    On a mesh of G devices the rows are G equal runs, one for each device, and so are the pages of the cache; a row
    names the pages of its device as if there were no others.

    Args:
        params: weights in compute dtype.
        cache: as in ``forward_cached``.
        chunk: what is new.
        targets: int32 ``[N, T]``, the token after each, where log-probabilities of the prompt are wanted.
        config: the architecture.
        prompt_logprobs: whether they are.
        mesh: of ``inference.mesh``; None is one device.

    Returns:
        Float32 logits ``[N, V]`` after each row's last real token, log-probabilities of the targets ``[N, T]``
        (``[N, 0]`` when not wanted), and the cache.
    """
    local = functools.partial(_run_rows, config=config, prompt_logprobs=prompt_logprobs)
    if mesh is None:
        return local(params, cache, chunk, targets)
    return jax.shard_map(
        functools.partial(local, experts=make_experts(config, mesh)),
        mesh=mesh,
        in_specs=(param_specs(params, config, mesh), CACHE, ROWS, ROWS),
        out_specs=(ROWS, ROWS, CACHE),
    )(params, cache, chunk, targets)


def _run_rows(
    params: dict,
    cache: Array,
    chunk: Chunk,
    targets: Array,
    *,
    config: ModelConfig,
    prompt_logprobs: bool,
    experts: Experts | None = None,
) -> tuple[Array, Array, Array]:
    """``run_chunk`` of one device's rows."""
    hidden, cache = forward_cached(params, cache, chunk, config, experts)
    head = head_weight(params)
    last = jnp.take_along_axis(hidden, jnp.maximum(chunk.count - 1, 0)[:, None, None], axis=1)[:, 0]
    logits = jnp.einsum("nd,vd->nv", last, head, preferred_element_type=jnp.float32)
    if not prompt_logprobs:
        return logits, jnp.zeros_like(logits, shape=(len(logits), 0)), cache
    parent = jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape)
    return logits, token_logprobs(hidden, parent, targets, head), cache
