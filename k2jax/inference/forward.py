"""The model over a paged cache: computes a chunk of new tokens per sequence; older tokens are read from its pages."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from k2jax.config.schema import ModelConfig
from k2jax.inference.lazy_zeros import lazy_zeros
from k2jax.inference.mesh import CACHE, ROWS, default_sharding, make_experts, param_specs
from k2jax.model import head_weight, run_layers, token_logprobs
from k2jax.model.attention import attention_of
from k2jax.model.cached_attention import Visible
from k2jax.model.feed_forward import Experts
from k2jax.model.head import CHUNK_ELEMENTS
from k2jax.model.rope import rotary_table
from pallas_kernels.implementation import resolve
from pallas_kernels.mla_decode import whole_lanes

SCRATCH_PAGE = 0  # takes the writes of padding; no sequence owns it


class Chunk(NamedTuple):
    """New tokens of N sequences.

    Attributes:
        tokens: int32 ``[N, T]``, left-aligned.
        count: int32 ``[N]``, number of real tokens of a row; 0 is an empty row.
        start: int32 ``[N]``, number of tokens of the sequence that are in the cache already.
        pages: int32 ``[N, P]``, the pages that hold the old tokens, in order, SCRATCH_PAGE beyond them.
        rows: int32 ``[N, T]``, where each new token's vector goes: page times page size, plus its place in the page.
            Padding goes to SCRATCH_PAGE.
    """

    tokens: Array
    count: Array
    start: Array
    pages: Array
    rows: Array


class MediaRows(NamedTuple):
    """Features of images and video in place of the embeddings of a chunk's tokens.

    Attributes:
        features: ``[N, T, D]`` in compute dtype, read where ``placed`` is True.
        placed: bool ``[N, T]``.
    """

    features: Array
    placed: Array


class Targets(NamedTuple):
    """What the log-probabilities of prompts are computed of.

    Attributes:
        tokens: int32 ``[N, T]``, the token after each of a chunk's tokens.
        temperature: float32 ``[N]``, divides the logits.
    """

    tokens: Array
    temperature: Array


class PromptScores(NamedTuple):
    """What the model thought of the tokens of a prompt, each given the tokens before it.

    Attributes:
        logprobs: float32 ``[N, T]``, of the targets.
        top_ids: int32 ``[N, T, K]``, the most likely tokens in their places, most likely first.
        top_logprobs: float32 ``[N, T, K]``, of those.
    """

    logprobs: Array
    top_ids: Array
    top_logprobs: Array


class ChunkOutput(NamedTuple):
    """What one program returns.

    Attributes:
        logits: float32 ``[N, V]``, after each row's last real token.
        scores: of the targets; T is 0 where they are not asked for.
        experts: int16 ``[N, T, expert layers, active experts]``, chosen for each token, meaningless on padding;
            ``[N, T, 0, 0]`` where they are not asked for.
        cache: with the new tokens' vectors.
    """

    logits: Array
    scores: PromptScores
    experts: Array
    cache: Array


def cache_shape(config: ModelConfig, pages: int, page_size: int) -> tuple[int, int, int, int]:
    """``[L, pages, page_size, W]``. For MLA's kernel W is padded to whole lanes, as a TPU's memory layout is anyway."""
    attention = attention_of(config)
    width = attention.cache_width(config)
    if resolve(config.kernels) != "xla" and attention.decode_kernel:
        width = whole_lanes(width)
    return config.layers, pages, page_size, width


def empty_cache(config: ModelConfig, pages: int, page_size: int, dtype: Any, mesh: Mesh | None = None) -> Array:
    """Zeros of ``cache_shape``; on a mesh each device holds an equal part of the pages."""
    shape = cache_shape(config, pages, page_size)
    # On its devices as what programs return: the second program would be compiled for another kind of cache.
    sharding = NamedSharding(mesh, CACHE) if mesh else default_sharding()
    if mesh is None and next(iter(sharding.device_set)).platform == "cpu":
        return lazy_zeros(shape, dtype, sharding)
    return jax.jit(functools.partial(jnp.zeros, shape, dtype), out_shardings=sharding)()


def forward_cached(
    params: dict,
    cache: Array,
    chunk: Chunk,
    config: ModelConfig,
    experts: Experts | None = None,
    *,
    media: MediaRows | None = None,
    return_experts: bool = False,
) -> tuple[Array, Array, Array | None]:
    """Runs the new tokens and writes their vectors to the cache.

    Args:
        params: weights in compute dtype.
        cache: ``[L, pages, page_size, W]``; donate it.
        chunk: the new tokens.
        config: the architecture.
        experts: the routed experts where they are spread over devices, see ``feed_forward.moe``.
        media: features of images among the new tokens; None is text alone.
        return_experts: whether the chosen experts are returned.

    Returns:
        Hidden states ``[N, T, D]`` after the final norm (meaningless on padding), the cache, and the chosen experts
        int32 ``[expert layers, N, T, active experts]`` or None.
    """
    step = jnp.arange(chunk.tokens.shape[1], dtype=jnp.int32)
    positions_NT = chunk.start[:, None] + step
    real_NT = step < chunk.count[:, None]
    rotary = rotary_table(positions_NT, config)
    among_new = (step[:, None] >= step) & real_NT[:, None]
    attention = attention_of(config).apply_cached

    def attend(weights: dict, x: Array, layer: Array) -> tuple[Array, Array]:
        return attention(weights, x, rotary, Visible(cache, layer, chunk.pages, chunk.start, among_new), config)

    embedded = params["embed"][chunk.tokens]
    if media is not None:
        embedded = jnp.where(media.placed[..., None], media.features.astype(embedded.dtype), embedded)
    hidden, stats = run_layers(
        params, embedded, real_NT, config=config, attend=attend, experts=experts, return_experts=return_experts
    )
    # A token whose state is not finite leaves zeros: NaN would reach whatever sequence gets its page next, even where
    # attention weighs it by 0. As every written vector so depends on the last layer, the cache is written after all
    # layers have read it; free to choose, XLA copies the whole cache (of a barrier, XLA:CPU forgets the order).
    finite_NT = jnp.isfinite(hidden).all(-1)
    new_LNTW = jnp.where(finite_NT[..., None], stats.extra, 0)
    return hidden, _write(cache, new_LNTW, chunk.rows), stats.expert_ids


def _write(cache: Array, new_LNTW: Array, rows_NT: Array) -> Array:
    """The cache with new vectors in rows of its pages, the same rows in every layer.

    As rows of a matrix: a scatter into four axes makes XLA:TPU copy the cache to another layout and back.
    """
    layers, pages, size, width = cache.shape
    new = jnp.pad(new_LNTW, ((0, 0), (0, 0), (0, 0), (0, width - new_LNTW.shape[-1]))).astype(cache.dtype)
    rows = jnp.arange(layers)[:, None, None] * (pages * size) + rows_NT
    return cache.reshape(-1, width).at[rows].set(new).reshape(cache.shape)


@functools.partial(
    jax.jit,
    static_argnames=("config", "prompt_logprobs", "prompt_top", "return_experts", "mesh"),
    donate_argnames=("cache",),
)
def run_chunk(
    params: dict,
    cache: Array,
    chunk: Chunk,
    targets: Targets,
    media: MediaRows | None = None,
    *,
    config: ModelConfig,
    prompt_logprobs: bool = False,
    prompt_top: int = 0,
    return_experts: bool = False,
    mesh: Mesh | None = None,
) -> ChunkOutput:
    """``forward_cached`` and the head, on one device or on all devices of a mesh.

    On a mesh of G devices the rows are G equal runs, one for each device, and so are the pages of the cache; a row
    names the pages of its device as if no other device had any.

    Args:
        params: weights in compute dtype.
        cache: as in ``forward_cached``.
        chunk: the new tokens.
        targets: read where log-probabilities are asked for.
        media: features of images among the new tokens; None, text alone, is a program of its own.
        config: the architecture.
        prompt_logprobs: whether log-probabilities of the targets are returned.
        prompt_top: K, how many of the most likely tokens are returned with them.
        return_experts: whether the chosen experts are returned.
        mesh: of ``inference.mesh``; None is one device.
    """
    asked = {"prompt_logprobs": prompt_logprobs, "prompt_top": prompt_top, "return_experts": return_experts}
    local = functools.partial(_run_rows, config=config, **asked)
    if mesh is None:
        return local(params, cache, chunk, targets, media)
    return jax.shard_map(
        functools.partial(local, experts=make_experts(config, mesh)),
        mesh=mesh,
        in_specs=(param_specs(params, config, mesh), CACHE, ROWS, ROWS, ROWS),
        out_specs=ChunkOutput(ROWS, ROWS, ROWS, CACHE),
    )(params, cache, chunk, targets, media)


def _run_rows(
    params: dict,
    cache: Array,
    chunk: Chunk,
    targets: Targets,
    media: MediaRows | None,
    *,
    config: ModelConfig,
    prompt_logprobs: bool,
    prompt_top: int,
    return_experts: bool,
    experts: Experts | None = None,
) -> ChunkOutput:
    """``run_chunk`` of one device's rows."""
    asked = {"media": media, "return_experts": return_experts}
    hidden, cache, expert_ids = forward_cached(params, cache, chunk, config, experts, **asked)
    logits = last_logits(params, hidden, chunk)
    none = jnp.zeros_like(logits, shape=(len(logits), 0, 0))
    scores = PromptScores(none.sum(-1), none.astype(jnp.int32), none)
    if prompt_logprobs:
        scores = _score(hidden, targets, head_weight(params), prompt_top)
    return ChunkOutput(logits, scores, as_routes(expert_ids, chunk.tokens), cache)


def last_logits(params: dict, hidden: Array, chunk: Chunk) -> Array:
    """Logits ``[N, V]`` in float32 after each row's last real token, of hidden states ``[N, T, D]``."""
    last = jnp.take_along_axis(hidden, jnp.maximum(chunk.count - 1, 0)[:, None, None], axis=1)[:, 0]
    return jnp.einsum("nd,vd->nv", last, head_weight(params), preferred_element_type=jnp.float32)


def as_routes(expert_ids: Array | None, tokens_NT: Array) -> Array:
    """Chosen experts as a program returns them, ``[N, T, expert layers, active experts]`` or ``[N, T, 0, 0]``."""
    if expert_ids is None:
        return jnp.zeros_like(tokens_NT, shape=(*tokens_NT.shape, 0, 0), dtype=jnp.int16)
    return jnp.moveaxis(expert_ids, 0, 2).astype(jnp.int16)


def _score(hidden: Array, targets: Targets, head: Array, top: int) -> PromptScores:
    shape = targets.tokens.shape
    parent = jnp.broadcast_to(jnp.arange(shape[1]), shape)
    temperature_NT = jnp.broadcast_to(targets.temperature[:, None], shape)
    logprobs = token_logprobs(hidden, parent, targets.tokens, head, temperature_NT)

    def most_likely(token: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden_D, temperature = token
        logits_V = jnp.einsum("d,vd->v", hidden_D, head, preferred_element_type=jnp.float32) / temperature
        logits_K, ids_K = lax.top_k(logits_V, top)
        return ids_K, logits_K - jax.nn.logsumexp(logits_V)

    if top == 0:
        none = jnp.zeros_like(logprobs, shape=(*shape, 0))
        return PromptScores(logprobs, none.astype(jnp.int32), none)
    # Some tokens at a time: logits of all would be larger than the model.
    tokens = hidden.reshape(-1, hidden.shape[-1]), temperature_NT.reshape(-1)
    ids, values = lax.map(most_likely, tokens, batch_size=max(1, min(len(tokens[1]), CHUNK_ELEMENTS // len(head))))
    return PromptScores(logprobs, ids.reshape(*shape, top), values.reshape(*shape, top))
