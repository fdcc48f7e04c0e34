"""MLA flash attention in plain XLA: forward and backward hold one tile of scores at a time.

A tile is a range of queries against a range of keys. Short sequences unroll the tiles, one wide tile for each block, so
that nothing beyond the causal diagonal is computed and no running softmax is needed. Long causal sequences loop over
square tiles and skip those in which the exit mask makes no key visible. Both walk the same two functions, ``attend``
and ``attend_gradients``. Long rows of documents that are attended in both directions have loops of their own
(``xla_intervals``).

Within this file the shared rope key is ``[B, 1, S, Dr]`` and the mask's vectors ``[B, 1, S]``: the sequence is axis 2
of every array. Without ``start`` the mask is causal, and tiles after the diagonal are not computed.
The order (batch, head, sequence, dim) is the one that XLA:CPU multiplies fastest.

Source: FlashAttention-2 (Dao, arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from pallas_kernels.implementation import target_platform
from pallas_kernels.mla_attention import xla_intervals
from pallas_kernels.mla_attention.arrays import AttentionInputs, AttentionStats
from pallas_kernels.mla_attention.xla_tile import (
    KeyMask,
    Keys,
    Queries,
    QueryResiduals,
    attend,
    attend_gradients,
    finish,
    merge,
)
from pallas_kernels.vma import vary_together

UNROLL_UP_TO = 1024
"""Longest sequence whose tiles are unrolled; the program of longer ones does not grow with the length."""
UNROLLED_BLOCK = 64
"""Tokens of an unrolled block up to half that length, twice as many above it: at most 8 blocks to compile."""
LOOPED_BLOCK = 256
"""Tokens of a block in the loops."""
SHARED_CORES_BLOCK = 128
"""The same for attention inside documents in both directions where devices share the cores of a CPU. It computes fewer
scores between documents; larger products pay off by being divided over cores, which the other devices use already."""


class Tiling(NamedTuple):
    """Division of the scores into tiles; static under jit.

    Attributes:
        block: tokens of a block.
        unrolled: whether tiles are unrolled instead of computed in a loop.
    """

    block: int
    unrolled: bool


def default_tiling(length: int, *, both_directions: bool = False) -> Tiling:
    """Tiling for sequences of ``length`` tokens, of causal attention or of that inside documents in both directions."""
    if length <= UNROLL_UP_TO:
        return Tiling(UNROLLED_BLOCK if length <= UNROLL_UP_TO // 2 else 2 * UNROLLED_BLOCK, unrolled=True)
    platform = target_platform.value or jax.default_backend()
    shared_cores = both_directions and platform == "cpu" and jax.local_device_count() > 1
    return Tiling(SHARED_CORES_BLOCK if shared_cores else LOOPED_BLOCK, unrolled=False)


def mla_attention(inputs: AttentionInputs, scale: float, tiling: Tiling) -> tuple[Array, AttentionStats]:
    """``pallas_kernels.mla_attention.mla_attention`` in plain XLA; the result does not depend on the tiling.

    Args:
        inputs: arrays of the call.
        scale: factor of the logits.
        tiling: division into tiles.
    """
    leaves, structure = jax.tree.flatten(inputs)
    inputs = jax.tree.unflatten(structure, vary_together(*leaves))
    mask = jax.tree.map(lambda x: x[:, None], KeyMask(inputs.exit, inputs.start))
    queries, keys = Queries(inputs.q_nope, inputs.q_rope), Keys(inputs.k_nope, inputs.k_rope[:, None], inputs.v)
    out, lse, peak_BHS = _attention(queries, keys, mask, float(scale), tiling)
    # Without the barrier XLA merges this maximum with the one over keys and reads all scores a second time.
    max_logit_H = lax.optimization_barrier(peak_BHS).max((0, 2))
    return out, AttentionStats(max_logit_H, lse)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attention(queries, keys, mask, scale, tiling):
    """Output ``[B, H, S, Dv]``, lse and row maxima ``[B, H, S]``; the latter two are treated as constants."""
    if tiling.unrolled:
        return _forward_unrolled(queries, keys, mask, scale, tiling.block)
    walk = _forward_looped if mask.start is None else xla_intervals.forward
    return walk(queries, keys, mask, scale, tiling.block)


def _attention_fwd(queries, keys, mask, scale, tiling):
    out, lse, peak = _attention(queries, keys, mask, scale, tiling)
    out, lse = checkpoint_name(out, "attention_output"), checkpoint_name(lse, "attention_lse")
    return (out, lse, peak), (queries, keys, mask, out, lse)


def _attention_bwd(scale, tiling, residuals, cotangents):
    queries, keys, mask, out, lse = residuals
    dout = cotangents[0]  # The others, of lse and the maxima, are dropped, since statistics carry no gradient.
    delta_BHS = (out.astype(jnp.float32) * dout.astype(jnp.float32)).sum(-1)
    rows = QueryResiduals(dout, lse, delta_BHS)
    if tiling.unrolled:
        grads = _backward_unrolled(queries, keys, mask, rows, scale, tiling.block)
    else:
        walk = _backward_looped if mask.start is None else xla_intervals.backward
        grads = walk(queries, keys, mask, rows, scale, tiling.block)
    return *_cast_like(grads, (queries, keys)), None


_attention.defvjp(_attention_fwd, _attention_bwd)


# --- short sequences: unrolled, one wide tile per block ------------------------------------------------------------


def _forward_unrolled(queries: Queries, keys: Keys, mask, scale, block):
    """Computes each block of queries against all keys up to its end, or all keys of the row, in one tile."""
    length = queries.nope.shape[2]
    blocks = []
    for start in range(0, length, block):
        block_queries = _after([out for out, _, _ in blocks[-1:]], _part(queries, start, block))
        seen_keys, seen_mask = _part((keys, mask), 0, length if mask.start is not None else start + block)
        partial = attend(block_queries, seen_keys, seen_mask, q_start=start, k_start=0, scale=scale)
        blocks.append(finish(partial, keys.v.dtype))
    return _concatenate(blocks)


def _backward_unrolled(queries: Queries, keys: Keys, mask, rows: QueryResiduals, scale, block):
    """Computes each block of keys against all queries from its start on, or all of the row, in one tile."""
    length = queries.nope.shape[2]
    starts = range(0, length, block)
    dqueries: list[list[Queries]] = [[] for _ in starts]  # for each block of queries, a share from each block of keys
    dkeys: list[Keys] = []
    done = []
    for start in starts:
        first = 0 if mask.start is not None else start
        later = _after(done, _part((queries, rows), first, length - first))
        block_keys = _part((keys, mask), start, block)
        shares, dkeys_block = attend_gradients(*later, *block_keys, q_start=first, k_start=start, scale=scale)
        dkeys.append(dkeys_block)
        done = [shares.nope, dkeys_block.nope, dkeys_block.v]
        for i, block_shares in enumerate(dqueries[first // block :]):
            block_shares.append(_part(shares, i * block, block))
    summed = [jax.tree.map(lambda *shares: sum(shares), *block_shares) for block_shares in dqueries]
    return _concatenate(summed), _concatenate(dkeys)


def _after(done: list[Array], tree):
    """Delays a tree of arrays ``[B, H, ...]`` until ``done`` is computed, by a condition that is never true.

    Otherwise XLA:CPU starts all blocks at once and keeps the scores of all of them. In sequence they share buffers,
    with a third of the memory and in a quarter less time. XLA removes an optimization_barrier before it schedules
    blocks.
    """
    for x in done:
        never_BH = x[:, :, 0, 0] < -jnp.inf
        tree = jax.tree.map(lambda y, never=never_BH: jnp.where(lax.expand_dims(never, range(2, y.ndim)), 0, y), tree)
    return tree


# --- long causal sequences: a loop over square tiles ---------------------------------------------------------------


def _forward_looped(queries: Queries, keys: Keys, mask, scale, block):
    """Computes each block of queries against its own block of keys, then against each other block it can see."""
    length = queries.nope.shape[2]
    queries, keys, mask, last_n = _whole_blocks(queries, keys, mask, block)
    indices = jnp.arange(len(last_n))

    def query_block(i):
        block_queries = _part(queries, i * block, block)

        def tile(j):
            block_keys, block_mask = _part((keys, mask), j * block, block)
            starts = {"q_start": i * block, "k_start": j * block}
            return attend(block_queries, block_keys, block_mask, **starts, scale=scale)

        visible = (indices < i) & (i * block < last_n)
        visible_first = jnp.argsort(~visible)
        partial = lax.fori_loop(0, visible.sum(), lambda n, seen: merge(seen, tile(visible_first[n])), tile(i))
        return finish(partial, keys.v.dtype)

    return _part(_join_blocks(lax.map(query_block, indices)), 0, length)


def _backward_looped(queries: Queries, keys: Keys, mask, rows: QueryResiduals, scale, block):
    """Computes each block of keys against each block of queries that sees it."""
    length = queries.nope.shape[2]
    queries, keys, mask, last_n = _whole_blocks(queries, keys, mask, block)
    rows = _pad(rows, block)

    def key_block(dqueries, j):
        block_keys, block_mask = _part((keys, mask), j * block, block)

        def add_tile(i, sums):
            dqueries, dkeys = sums
            block_queries, block_rows = _part((queries, rows), i * block, block)
            starts = {"q_start": i * block, "k_start": j * block}
            shares = attend_gradients(block_queries, block_rows, block_keys, block_mask, **starts, scale=scale)
            return _add_part(dqueries, shares[0], i * block), jax.tree.map(jnp.add, dkeys, shares[1])

        # The blocks of queries that see a key of this block are contiguous: they end at its largest exit.
        stop = (last_n[j] + block - 1) // block
        dqueries, dkeys = lax.fori_loop(j, stop, add_tile, (dqueries, _zeros(block_keys, rows)))
        return dqueries, _cast_like(dkeys, block_keys)

    dqueries, dkeys = lax.scan(key_block, _zeros(queries, rows), jnp.arange(len(last_n)))
    return _part((dqueries, _join_blocks(dkeys)), 0, length)


def _whole_blocks(queries: Queries, keys: Keys, mask: KeyMask, block):
    """Pads the inputs to whole blocks with invisible tokens.

    Also returns, for each block of keys, the last exit ``[blocks]`` over the batch.
    """
    batch, _, length, _ = queries.nope.shape
    exit = jnp.full((batch, 1, length), length, jnp.int32) if mask.exit is None else jnp.minimum(mask.exit, length)
    queries, keys, exit = _pad((queries, keys, exit), block)
    last_n = exit.reshape(batch, exit.shape[2] // block, block).max((0, 2))
    return queries, keys, KeyMask(exit, None), last_n


def _zeros(tree, rows: QueryResiduals):
    """Float32 zeros in the shapes of the tree, as a loop's initial value: they vary over mesh axes as the rows do."""
    zero = jnp.where(rows.delta == rows.delta, 0.0, 0.0)[:1, :1, :1, None]
    return jax.tree.map(lambda x: jnp.broadcast_to(zero, x.shape), tree)


# --- pieces of the sequence, which is axis 2 of every array -------------------------------------------------------


def _part(tree, start, size):
    """Takes ``size`` tokens from ``start`` on, fewer at the end if ``start`` is a Python int."""
    if isinstance(start, int):
        return jax.tree.map(lambda x: x[:, :, start : start + size], tree)
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size, 2), tree)


def _add_part(tree, part, start):
    """Adds ``part`` from ``start`` on, by a read and a write in place; ``.at[].add`` would compile to a scatter."""

    def add(x, y):
        return lax.dynamic_update_slice_in_dim(x, lax.dynamic_slice_in_dim(x, start, y.shape[2], 2) + y, start, 2)

    return jax.tree.map(add, tree, part)


def _pad(tree, block):
    """Appends zeros up to a multiple of ``block`` tokens. A padded exit of 0 hides the token."""

    def pad(x):
        return jnp.pad(x, [(0, -x.shape[2] % block if axis == 2 else 0) for axis in range(x.ndim)])

    return jax.tree.map(pad, tree)


def _concatenate(parts: list):
    return jax.tree.map(lambda *xs: jnp.concatenate(xs, 2), *parts)


def _cast_like(tree, like):
    return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, like)


def _join_blocks(tree):
    """Reshapes ``[blocks, B, H, block, ...]`` to ``[B, H, S, ...]``."""

    def join(x):
        length = x.shape[0] * x.shape[3]  # not -1, which is ambiguous for an array of width 0
        return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], length, *x.shape[4:])

    return jax.tree.map(join, tree)
