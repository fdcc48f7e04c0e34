"""Attention inside documents in both directions in plain XLA: forward and backward hold one tile of scores at a time.

The rows of a batch are joined to one sequence, ``[H, T, D]`` with T = B S, because every key names the queries that see
it: a tile may span the end of a row. For each block of queries the loop visits the blocks of keys from the first to the
last that any of them sees, and in the backward pass the same with the roles exchanged.

A tile of scores is held transposed, ``[keys, queries]``, as in ``tile``: reducing over keys is arithmetic between rows,
and no product contracts the rows of a whole tile, which XLA:CPU does at a third of the speed. A tile has twice as many
keys as queries: from 512 rows on, XLA:CPU divides a product over the cores.

Source: FlashAttention-2 (Dao, arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from jax import Array, lax
import jax.numpy as jnp

from pallas_kernels.mla_attention.xla_tile import KeyMask, Keys, Queries, QueryResiduals
from pallas_kernels.vma import full

LOG2_E = math.log2(math.e)
KEYS_PER_QUERY = 2
"""Blocks of keys are longer than blocks of queries by this factor."""

_matmul = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


class _Blocks(NamedTuple):
    """Division of the joined sequence; static under jit.

    Attributes:
        queries: tokens of a block of queries.
        keys: tokens of a block of keys.
    """

    queries: int
    keys: int


class _Partial(NamedTuple):
    """Attention of a block of queries to the keys so far, not yet divided by the sum of weights; float32.

    Attributes:
        values: ``[H, Dv, Q]``, sum of the weighted values.
        total: ``[H, Q]``, sum of the weights.
        peak: ``[H, Q]``, largest logit times log2(e), -inf if no key is visible.
    """

    values: Array
    total: Array
    peak: Array


def forward(queries: Queries, keys: Keys, mask: KeyMask, scale: float, block: int) -> tuple[Array, Array, Array]:
    """Computes attention under ``start[j] <= i < exit[j]``.

    Args:
        queries: ``[B, H, S, ...]``.
        keys: ``[B, H, S, ...]``, the shared key ``[B, 1, S, Dr]``.
        mask: int32 ``[B, 1, S]``; it has starts.
        scale: factor of the logits.
        block: tokens of a block of queries.

    Returns:
        Output ``[B, H, S, Dv]`` in the dtype of the values, lse and row maxima, float32 ``[B, H, S]``.
    """
    batch, heads, length, width = keys.v.shape
    blocks = _Blocks(block, KEYS_PER_QUERY * block)
    q_HTE, k_HTE, v_HTE = (_join_rows(x, blocks) for x in _whole_heads(queries, keys))
    start_T, exit_T = _joined_mask(mask, blocks)
    v_HET = v_HTE.swapaxes(1, 2)
    first, stop = _visible_keys(start_T, exit_T, blocks)
    total = q_HTE.shape[1]
    zero = full((heads, blocks.queries), 0, jnp.float32, q_HTE)
    nothing = _Partial(jnp.broadcast_to(zero[:, None], (heads, width, blocks.queries)), zero, zero - jnp.inf)

    def query_block(i, done):
        block_q = _part(q_HTE, i, blocks.queries, 1)

        def tile(j, seen):
            block_k, block_v = _part(k_HTE, j, blocks.keys, 1), _part(v_HET, j, blocks.keys, 2)
            visible_KQ = _visible(start_T, exit_T, i, j, blocks)
            return _attend(block_q, block_k, block_v, visible_KQ, seen, scale)

        found = _finish(lax.fori_loop(first[i], stop[i], tile, nothing), v_HTE.dtype)
        return tuple(_replace_part(x, part, i, x.ndim - 1) for x, part in zip(done, found, strict=True))

    shapes = ((heads, width, total), v_HTE.dtype), ((heads, total), jnp.float32), ((heads, total), jnp.float32)
    empty = tuple(full(shape, 0, dtype, q_HTE) for shape, dtype in shapes)
    out_HET, lse_HT, peak_HT = lax.fori_loop(0, total // blocks.queries, query_block, empty)
    split = functools.partial(_split_rows, batch=batch, length=length)
    return split(out_HET.swapaxes(1, 2)), split(lse_HT), split(peak_HT)


def backward(
    queries: Queries, keys: Keys, mask: KeyMask, rows: QueryResiduals, scale: float, block: int
) -> tuple[Queries, Keys]:
    """Computes the gradients of queries and keys, float32.

    Args:
        queries: as in ``forward``, like all arguments but ``rows``.
        keys: keys and values.
        mask: which queries see a key.
        rows: what the forward pass and the output's cotangent say of each query.
        scale: factor of the logits.
        block: tokens of a block of queries.
    """
    batch, _, length, nope = keys.nope.shape
    blocks = _Blocks(block, KEYS_PER_QUERY * block)
    joined = (*_whole_heads(queries, keys), rows.dout, _finite(rows.lse) * LOG2_E, rows.delta)
    q_HTE, k_HTE, v_HTE, dout_HTE, lse_HT, delta_HT = (_join_rows(x, blocks) for x in joined)
    start_T, exit_T = _joined_mask(mask, blocks)
    k_HET = k_HTE.swapaxes(1, 2)
    first = start_T.reshape(-1, blocks.keys).min(1) // blocks.queries
    stop = -(-exit_T.reshape(-1, blocks.keys).max(1) // blocks.queries)

    def key_block(j, sums):
        dq_HET, dk_HTE, dv_HTE = sums
        block_k, block_v = _part(k_HTE, j, blocks.keys, 1), _part(v_HTE, j, blocks.keys, 1)
        block_k_transposed = _part(k_HET, j, blocks.keys, 2)

        def tile(i, sums):
            dq_HET, dk_HKE, dv_HKE = sums
            block_q, block_dout = _part(q_HTE, i, blocks.queries, 1), _part(dout_HTE, i, blocks.queries, 1)
            block_lse, block_delta = (_part(x, i, blocks.queries, 1)[:, None] for x in (lse_HT, delta_HT))
            scores_HKQ = _log2_scores(block_q, block_k, scale)
            probs_HKQ = jnp.where(_visible(start_T, exit_T, i, j, blocks), jnp.exp2(scores_HKQ - block_lse), 0)
            dprobs_HKQ = _matmul("hke,hqe->hkq", block_v, block_dout)
            dscores_HKQ = (probs_HKQ * (dprobs_HKQ - block_delta)).astype(k_HTE.dtype)
            dq_HET = _add_part(dq_HET, _matmul("hek,hkq->heq", block_k_transposed, dscores_HKQ), i, 2)
            dk_HKE += _matmul("hkq,hqe->hke", dscores_HKQ, block_q)
            dv_HKE += _matmul("hkq,hqe->hke", probs_HKQ.astype(dout_HTE.dtype), block_dout)
            return dq_HET, dk_HKE, dv_HKE

        nothing = (full(x.shape, 0, jnp.float32, q_HTE) for x in (block_k, block_v))
        dq_HET, block_dk, block_dv = lax.fori_loop(first[j], stop[j], tile, (dq_HET, *nothing))
        return dq_HET, _replace_part(dk_HTE, block_dk, j, 1), _replace_part(dv_HTE, block_dv, j, 1)

    empty = tuple(full(x.shape, 0, jnp.float32, q_HTE) for x in (k_HET, k_HTE, v_HTE))
    dq_HET, dk_HTE, dv_HTE = lax.fori_loop(0, k_HTE.shape[1] // blocks.keys, key_block, empty)
    split = functools.partial(_split_rows, batch=batch, length=length)
    dq, dk = scale * split(dq_HET.swapaxes(1, 2)), scale * split(dk_HTE)
    dkeys = Keys(dk[..., :nope], dk[..., nope:].sum(1, keepdims=True), split(dv_HTE))
    return Queries(dq[..., :nope], dq[..., nope:]), dkeys


def _log2_scores(q_HQE: Array, k_HKE: Array, scale: float) -> Array:
    """Float32 logits ``[H, K, Q]`` times log2(e): ``exp2`` of them is the logit's exponential."""
    return _matmul("hke,hqe->hkq", k_HKE, q_HQE) * (scale * LOG2_E)


def _attend(q_HQE: Array, k_HKE: Array, v_HEK: Array, visible_KQ: Array, seen: _Partial, scale: float) -> _Partial:
    """Adds the keys of a tile to what its queries have seen."""
    scores_HKQ = jnp.where(visible_KQ, _log2_scores(q_HQE, k_HKE, scale), -jnp.inf)
    peak_HQ = jnp.maximum(seen.peak, scores_HKQ.max(1))
    finite_HQ = _finite(peak_HQ)
    weights_HKQ = jnp.exp2(scores_HKQ - finite_HQ[:, None])
    kept_HQ = jnp.exp2(seen.peak - finite_HQ)
    values = kept_HQ[:, None] * seen.values + _matmul("hek,hkq->heq", v_HEK, weights_HKQ.astype(v_HEK.dtype))
    return _Partial(values, kept_HQ * seen.total + weights_HKQ.sum(1), peak_HQ)


def _finish(partial: _Partial, dtype) -> tuple[Array, Array, Array]:
    """Output ``[H, Dv, Q]`` in ``dtype``, lse and row maxima ``[H, Q]``."""
    out_HEQ = partial.values / jnp.where(partial.total == 0, 1, partial.total)[:, None]
    lse_HQ = (_finite(partial.peak) + jnp.log2(partial.total)) / LOG2_E
    return out_HEQ.astype(dtype), lse_HQ, partial.peak / LOG2_E


# --- the mask, of the joined sequence ------------------------------------------------------------------------------


def _joined_mask(mask: KeyMask, blocks: _Blocks) -> tuple[Array, Array]:
    """Start and exit ``[T]`` as indices of the joined sequence; keys that nobody sees have an empty interval.

    Its start is after all others and its exit before, so that it widens no block's range.
    """
    batch, _, length = mask.start.shape
    vectors = mask.start, jnp.full_like(mask.start, length) if mask.exit is None else mask.exit
    start, exit = (jnp.clip(x[:, 0], 0, length) + length * jnp.arange(batch)[:, None] for x in vectors)
    unseen = start >= exit
    start_T = jnp.where(unseen, batch * length, start).ravel()
    exit_T = jnp.where(unseen, 0, exit).ravel()
    missing = -len(start_T) % blocks.keys
    return jnp.pad(start_T, (0, missing), constant_values=batch * length), jnp.pad(exit_T, (0, missing))


def _visible_keys(start_T: Array, exit_T: Array, blocks: _Blocks) -> tuple[Array, Array]:
    """First block of keys, and the one after the last, that any query of each block sees; equal if there is none."""
    first = start_T.reshape(-1, blocks.keys).min(1)
    last = exit_T.reshape(-1, blocks.keys).max(1)
    query_n1 = blocks.queries * jnp.arange(len(start_T) // blocks.queries)[:, None]
    visible_nm = (first < query_n1 + blocks.queries) & (query_n1 < last)
    any_n, count = visible_nm.any(1), visible_nm.shape[1]
    return jnp.argmax(visible_nm, 1), jnp.where(any_n, count - jnp.argmax(visible_nm[:, ::-1], 1), 0)


def _visible(start_T: Array, exit_T: Array, i, j, blocks: _Blocks) -> Array:
    """The mask of a tile, bool ``[K, Q]``."""
    start_K1, exit_K1 = (_part(x, j, blocks.keys, 0)[:, None] for x in (start_T, exit_T))
    query_Q = i * blocks.queries + jnp.arange(blocks.queries)
    return (start_K1 <= query_Q) & (query_Q < exit_K1)


def _finite(x: Array) -> Array:
    """Replaces -inf by 0, so that subtracting the result from -inf does not give NaN."""
    return jnp.where(x == -jnp.inf, 0, x)


# --- rows and blocks -----------------------------------------------------------------------------------------------


def _whole_heads(queries: Queries, keys: Keys) -> tuple[Array, Array, Array]:
    """Queries and keys with both of their parts, and values, ``[B, H, S, ...]``."""
    if not keys.rope.shape[-1]:
        return queries.nope, keys.nope, keys.v
    k_rope = jnp.broadcast_to(keys.rope, queries.rope.shape)
    return jnp.concatenate([queries.nope, queries.rope], -1), jnp.concatenate([keys.nope, k_rope], -1), keys.v


def _join_rows(x: Array, blocks: _Blocks) -> Array:
    """``[B, H, S, ...]`` to ``[H, T, ...]``, T = B S and zeros up to whole blocks."""
    joined = x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2], *x.shape[3:])
    return jnp.pad(joined, [(0, 0), (0, -joined.shape[1] % blocks.keys), *[(0, 0)] * (joined.ndim - 2)])


def _split_rows(x: Array, *, batch: int, length: int) -> Array:
    """``[H, T, ...]`` to ``[B, H, S, ...]``."""
    return x[:, : batch * length].reshape(x.shape[0], batch, length, *x.shape[2:]).swapaxes(0, 1)


def _part(x: Array, index, size: int, axis: int) -> Array:
    """A block of an array."""
    return lax.dynamic_slice_in_dim(x, index * size, size, axis)


def _replace_part(x: Array, part: Array, index, axis: int) -> Array:
    """Writes a block of an array."""
    return lax.dynamic_update_slice_in_dim(x, part, index * part.shape[axis], axis)


def _add_part(x: Array, part: Array, index, axis: int) -> Array:
    """Adds to a block, by a read and a write in place; ``.at[].add`` would compile to a scatter."""
    return _replace_part(x, _part(x, index, part.shape[axis], axis) + part, index, axis)
