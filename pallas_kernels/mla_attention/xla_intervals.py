"""Attention inside documents in both directions in plain XLA: forward and backward hold one tile of scores at a time.

The rows of a batch are joined to one sequence, ``[H, T, D]`` with T = B S, because every key names the queries that see
it: a tile may span the end of a row. Each block of queries visits the blocks of keys from the first to the last that
any of its queries sees, two at a time: with blocks of 256 these are the 512 rows from which on XLA:CPU divides a
product over the cores.

A tile of scores is held transposed, ``[keys, queries]``, as in ``tile``: reducing over keys is arithmetic between rows,
and no product contracts the rows of a whole tile, which XLA:CPU does at a third of the speed.

Source: FlashAttention-2 (Dao, arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple

from jax import Array, lax
import jax.numpy as jnp

from pallas_kernels.mla_attention.xla_tile import KeyMask, Keys, Queries, QueryResiduals
from pallas_kernels.vma import full

LOG2_E = math.log2(math.e)
_matmul = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


class _Visible(NamedTuple):
    """Which keys a query sees, in the joined sequence.

    Attributes:
        start: int32 ``[T]``, first query that sees a key; after all queries for keys that nobody sees.
        exit: int32 ``[T]``, the query after the last; 0 for keys that nobody sees.
        first: int32 ``[blocks]``, first block of keys that any query of a block sees.
        stop: int32 ``[blocks]``, the block after the last; equal to ``first`` if there is none.
    """

    start: Array
    exit: Array
    first: Array
    stop: Array


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
        block: tokens of a block.

    Returns:
        Output ``[B, H, S, Dv]`` in the dtype of the values, lse and row maxima, float32 ``[B, H, S]``.
    """
    batch, heads, length, width = keys.v.shape
    q_HTE, k_HTE, v_HTE = (_join_rows(x, block) for x in _whole_heads(queries, keys))
    v_HET = v_HTE.swapaxes(1, 2)
    visible, total = _visible_keys(mask, block), q_HTE.shape[1]
    zero = full((heads, block), 0, jnp.float32, q_HTE)
    nothing = _Partial(jnp.broadcast_to(zero[:, None], (heads, width, block)), zero, zero - jnp.inf)

    def query_block(i, done):
        block_q = _part(q_HTE, i * block, block, 1)

        def tile(k_start, size, seen):
            tile_k, tile_v = _part(k_HTE, k_start, size, 1), _part(v_HET, k_start, size, 2)
            visible_KQ = _mask(visible, i * block, block, k_start, size)
            return _attend(block_q, tile_k, tile_v, visible_KQ, seen, scale)

        results = _finish(_over_keys(visible, i, block, tile, nothing), v_HTE.dtype)
        return tuple(_replace_part(x, part, i * block, x.ndim - 1) for x, part in zip(done, results, strict=True))

    shapes = ((heads, width, total), v_HTE.dtype), ((heads, total), jnp.float32), ((heads, total), jnp.float32)
    empty = tuple(full(shape, 0, dtype, q_HTE) for shape, dtype in shapes)
    out_HET, lse_HT, peak_HT = lax.fori_loop(0, total // block, query_block, empty)
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
        block: tokens of a block.
    """
    batch, _, length, nope = keys.nope.shape
    q_HTE, k_HTE, v_HTE, dout_HTE = (_join_rows(x, block) for x in (*_whole_heads(queries, keys), rows.dout))
    lse_HT, delta_HT = (_join_rows(x, block) for x in (_finite(rows.lse) * LOG2_E, rows.delta))
    k_HET = k_HTE.swapaxes(1, 2)
    visible = _visible_keys(mask, block)

    def query_block(i, sums):
        block_q, block_dout = _part(q_HTE, i * block, block, 1), _part(dout_HTE, i * block, block, 1)
        block_lse, block_delta = (_part(x, i * block, block, 1)[:, None] for x in (lse_HT, delta_HT))

        def tile(k_start, size, sums):
            dq_HEQ, dk_HTE, dv_HTE = sums
            tile_k, tile_v = _part(k_HTE, k_start, size, 1), _part(v_HTE, k_start, size, 1)
            probs_HKQ = jnp.exp2(_log2_scores(block_q, tile_k, scale) - block_lse)
            probs_HKQ = jnp.where(_mask(visible, i * block, block, k_start, size), probs_HKQ, 0)
            dprobs_HKQ = _matmul("hke,hqe->hkq", tile_v, block_dout)
            dscores_HKQ = (probs_HKQ * (dprobs_HKQ - block_delta)).astype(k_HTE.dtype)
            dq_HEQ += _matmul("hek,hkq->heq", _part(k_HET, k_start, size, 2), dscores_HKQ)
            tile_dk = _matmul("hkq,hqe->hke", dscores_HKQ, block_q)
            tile_dv = _matmul("hkq,hqe->hke", probs_HKQ.astype(dout_HTE.dtype), block_dout)
            return dq_HEQ, _add_part(dk_HTE, tile_dk, k_start, 1), _add_part(dv_HTE, tile_dv, k_start, 1)

        dq_HET, dk_HTE, dv_HTE = sums
        nothing = full((*k_HET.shape[:2], block), 0, jnp.float32, q_HTE)
        dq_HEQ, dk_HTE, dv_HTE = _over_keys(visible, i, block, tile, (nothing, dk_HTE, dv_HTE))
        return _replace_part(dq_HET, dq_HEQ, i * block, 2), dk_HTE, dv_HTE

    empty = tuple(full(x.shape, 0, jnp.float32, q_HTE) for x in (k_HET, k_HTE, v_HTE))
    dq_HET, dk_HTE, dv_HTE = lax.fori_loop(0, k_HTE.shape[1] // block, query_block, empty)
    split = functools.partial(_split_rows, batch=batch, length=length)
    dq, dk = scale * split(dq_HET.swapaxes(1, 2)), scale * split(dk_HTE)
    dkeys = Keys(dk[..., :nope], dk[..., nope:].sum(1, keepdims=True), split(dv_HTE))
    return Queries(dq[..., :nope], dq[..., nope:]), dkeys


def _over_keys(visible: _Visible, i, block: int, tile: Callable, state: Any) -> Any:
    """Applies ``state = tile(start, size, state)`` to the keys that a block of queries sees, two blocks at a time.

    An odd block is left for the end, so that no tile is wider than what is seen.
    """
    first, count = visible.first[i], visible.stop[i] - visible.first[i]
    pairs = count // 2
    state = lax.fori_loop(0, pairs, lambda n, state: tile((first + 2 * n) * block, 2 * block, state), state)
    return lax.fori_loop(2 * pairs, count, lambda n, state: tile((first + n) * block, block, state), state)


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


def _visible_keys(mask: KeyMask, block: int) -> _Visible:
    """Finds out which keys of the joined sequence are seen.

    Where nobody sees a key, its interval is empty in a way that widens the range of no block.
    """
    batch, _, length = mask.start.shape
    vectors = mask.start, jnp.full_like(mask.start, length) if mask.exit is None else mask.exit
    start, exit = (jnp.clip(x[:, 0], 0, length) + length * jnp.arange(batch)[:, None] for x in vectors)
    unseen, missing = start >= exit, -(batch * length) % (2 * block)
    start_T = jnp.pad(jnp.where(unseen, batch * length, start).ravel(), (0, missing), constant_values=batch * length)
    exit_T = jnp.pad(jnp.where(unseen, 0, exit).ravel(), (0, missing))
    start_N, exit_N = start_T.reshape(-1, block).min(1), exit_T.reshape(-1, block).max(1)
    query_M1 = block * jnp.arange(len(start_N))[:, None]
    seen_MN = (start_N < query_M1 + block) & (query_M1 < exit_N)
    stop_M = jnp.where(seen_MN.any(1), len(start_N) - jnp.argmax(seen_MN[:, ::-1], 1), 0)
    return _Visible(start_T, exit_T, jnp.argmax(seen_MN, 1), stop_M)


def _mask(visible: _Visible, q_start, queries: int, k_start, keys: int) -> Array:
    """The mask of a tile, bool ``[K, Q]``."""
    start_K1, exit_K1 = (_part(x, k_start, keys, 0)[:, None] for x in (visible.start, visible.exit))
    query_Q = q_start + jnp.arange(queries)
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


def _join_rows(x: Array, block: int) -> Array:
    """``[B, H, S, ...]`` to ``[H, T, ...]``, T = B S and zeros up to whole pairs of blocks."""
    joined = x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2], *x.shape[3:])
    return jnp.pad(joined, [(0, 0), (0, -joined.shape[1] % (2 * block)), *[(0, 0)] * (joined.ndim - 2)])


def _split_rows(x: Array, *, batch: int, length: int) -> Array:
    """``[H, T, ...]`` to ``[B, H, S, ...]``."""
    return x[:, : batch * length].reshape(x.shape[0], batch, length, *x.shape[2:]).swapaxes(0, 1)


def _part(x: Array, start, size: int, axis: int) -> Array:
    """Takes ``size`` tokens from ``start`` on."""
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def _replace_part(x: Array, part: Array, start, axis: int) -> Array:
    """Writes ``part`` from ``start`` on."""
    return lax.dynamic_update_slice_in_dim(x, part, start, axis)


def _add_part(x: Array, part: Array, start, axis: int) -> Array:
    """Adds ``part`` from ``start`` on, by a read and a write in place; ``.at[].add`` would compile to a scatter."""
    return _replace_part(x, _part(x, start, part.shape[axis], axis) + part, start, axis)
