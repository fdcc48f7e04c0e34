"""Several tokens of every sequence in one program: what a step costs beside the model is paid once for all of them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from k2jax.client import MAX_TOP_LOGPROBS
from k2jax.config.schema import ModelConfig
from k2jax.inference.adjustments import with_drawn
from k2jax.inference.forward import SCRATCH_PAGE, Chunk, as_routes, forward_cached, last_logits
from k2jax.inference.mesh import CACHE, ROWS, make_experts, param_specs
from k2jax.inference.sampler import Choice, Drawn, sample
from k2jax.model.feed_forward import Experts

STEPS = 4
"""Most tokens that a program generates of a sequence. A new request waits for the end of a program, and what was
generated behind a stop token is dropped; most of what the host costs is saved by a few."""
TOKENS = PartitionSpec(None, *ROWS)  # of a batch [steps, rows, ...]


class Continuation(NamedTuple):
    """N sequences whose last token is not in the cache yet.

    Attributes:
        tokens: int32 ``[N]``, the last of each.
        count: int32 ``[N]``, tokens to generate, at most STEPS; 0 is an empty row.
        start: int32 ``[N]``, number of tokens of the sequence that are in the cache already.
        pages: int32 ``[N, P]``, those of the sequence, in order, with room for ``count`` tokens; SCRATCH_PAGE beyond.
    """

    tokens: Array
    count: Array
    start: Array
    pages: Array


class DecodeOutput(NamedTuple):
    """What one program returns.

    Attributes:
        drawn: arrays ``[STEPS, N, ...]``, meaningless beyond a row's count.
        experts: int16 ``[STEPS, N, expert layers, active experts]``, chosen for the token before each drawn one;
            ``[STEPS, N, 0, 0]`` where they are not asked for.
        cache: with the vectors of all tokens but the last.
    """

    drawn: Drawn
    experts: Array
    cache: Array


@functools.partial(jax.jit, static_argnames=("config", "return_experts", "mesh"), donate_argnames=("cache",))
def decode(
    params: dict,
    cache: Array,
    rows: Continuation,
    choice: Choice,
    steps: Array,
    mask: Array | None = None,
    *,
    config: ModelConfig,
    return_experts: bool = False,
    mesh: Mesh | None = None,
) -> DecodeOutput:
    """Generates tokens one after the other, on one device or on all devices of a mesh; see ``forward.run_chunk``.

    The number of tokens does not make another program, so the same token is computed with the same roundings whatever
    is generated before and behind it.

    Args:
        params: weights in compute dtype.
        cache: as in ``forward.forward_cached``.
        rows: the sequences.
        choice: how the first token of each is drawn; random numbers of the following continue. Adjustments have STEPS
            empty columns at their end.
        steps: int32, the most tokens of a row, over all devices.
        mask: as of ``sampler.sample``, the same in every step; None allows all tokens.
        config: the architecture.
        return_experts: whether the chosen experts are returned.
        mesh: of ``inference.mesh``; None is one device.
    """
    local = functools.partial(_decode_rows, config=config, return_experts=return_experts)
    if mesh is None:
        return local(params, cache, rows, choice, steps, mask)
    return jax.shard_map(
        functools.partial(local, experts=make_experts(config, mesh)),
        mesh=mesh,
        in_specs=(param_specs(params, config, mesh), CACHE, ROWS, ROWS, PartitionSpec(), ROWS),
        out_specs=DecodeOutput(TOKENS, TOKENS, CACHE),
    )(params, cache, rows, choice, steps, mask)


def _decode_rows(
    params: dict,
    cache: Array,
    rows: Continuation,
    choice: Choice,
    steps: Array,
    mask: Array | None,
    *,
    config: ModelConfig,
    return_experts: bool,
    experts: Experts | None = None,
) -> DecodeOutput:
    """``decode`` of one device's rows."""
    size = cache.shape[2]

    def generate_one(cache: Array, tokens: Array, step: Array, choice: Choice) -> tuple[Array, tuple[Drawn, Array]]:
        position = rows.start + jnp.minimum(step, rows.count)
        page = jnp.take_along_axis(rows.pages, (position // size)[:, None], axis=1, mode="clip")[:, 0]
        is_real = step < rows.count
        row = jnp.where(is_real, page * size + position % size, SCRATCH_PAGE * size)
        chunk = Chunk(tokens[:, None], is_real.astype(jnp.int32), position, rows.pages, row[:, None])
        hidden, cache, chosen = forward_cached(params, cache, chunk, config, experts, return_experts=return_experts)
        drawn = sample(last_logits(params, hidden, chunk), choice._replace(index=choice.index + step), mask)
        return cache, (drawn, as_routes(chosen, chunk.tokens)[:, 0])

    def body(state: tuple[Array, Array, Array, tuple, Any]) -> tuple[Array, Array, Array, tuple, Any]:
        step, cache, tokens, outputs, adjustments = state
        cache, new = generate_one(cache, tokens, step, choice._replace(adjustments=adjustments))
        outputs = jax.tree.map(lambda array, value: array.at[step].set(value), outputs, new)
        if adjustments is not None:
            adjustments = with_drawn(adjustments, new[0].tokens, adjustments.ids.shape[1] - STEPS + step)
        return step + 1, cache, new[0].tokens, outputs, adjustments

    # Zeros of an array of the device's own: a mesh's program keeps apart what differs between devices.
    zeros = lambda dtype, *shape: jnp.zeros_like(rows.tokens, shape=(STEPS, len(rows.tokens), *shape), dtype=dtype)  # noqa: E731
    top, routes = min(MAX_TOP_LOGPROBS, config.vocab), (config.layers - config.dense_layers, config.moe.active_experts)
    is_free = mask is None and choice.adjustments is None
    drawn = Drawn(zeros(jnp.int32), zeros(jnp.float32), zeros(jnp.int32, top), zeros(jnp.float32, top))
    drawn = drawn._replace(free_logprobs=None if is_free else zeros(jnp.float32))
    none = (drawn, zeros(jnp.int16, *(routes if return_experts else (0, 0))))
    begin = jnp.zeros_like(steps), cache, rows.tokens, none, choice.adjustments
    _, cache, _, outputs, _ = lax.while_loop(lambda state: state[0] < steps, body, begin)
    return DecodeOutput(*outputs, cache)
