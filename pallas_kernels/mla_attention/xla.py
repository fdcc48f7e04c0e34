"""MLA flash attention in plain XLA: scores exist one tile at a time, forward and backward.

A tile is a range of queries against a range of keys. Short sequences unroll the tiles, one wide tile per block, so that
what lies beyond the causal diagonal is never computed and no running softmax is needed; long ones loop over square
tiles and skip those in which the exit mask leaves nothing visible. Both walk the same two functions, ``_attend`` and
``_attend_gradients``.

Inside this file the shared rope key is ``[B, 1, S, Dr]`` and exit ``[B, 1, S]``: the sequence is axis 2 of everything.
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

from pallas_kernels.varying import vary_together

UNROLL_UP_TO = 1024
"""Longest sequence whose tiles are unrolled; beyond it the compiled program does not grow with the length."""
UNROLLED_BLOCK = 64
"""Tokens in an unrolled block up to half that length, twice as many from there on: at most 8 blocks to compile."""
LOOPED_BLOCK = 256


class AttentionStats(NamedTuple):
    """What attention reports beside its output; no gradient flows through it.

    Attributes:
        max_logit: float32 ``[H]``, the head's largest scaled visible logit over the call's batch, -inf if none is
            visible. QK-Clip reads it.
        lse: float32 ``[B, H, S]``, log of the sum of a row's exponentiated visible logits, -inf if none is visible.
    """

    max_logit: Array
    lse: Array


class Tiling(NamedTuple):
    """How the scores are walked: in blocks of ``block`` tokens, unrolled or in a loop. Static under jit."""

    block: int
    unrolled: bool


def default_tiling(length: int) -> Tiling:
    """The tiling for sequences of ``length`` tokens."""
    if length <= UNROLL_UP_TO:
        return Tiling(UNROLLED_BLOCK if length <= UNROLL_UP_TO // 2 else 2 * UNROLLED_BLOCK, unrolled=True)
    return Tiling(LOOPED_BLOCK, unrolled=False)


class _Queries(NamedTuple):
    nope: Array  # [B, H, Q, Dn]
    rope: Array  # [B, H, Q, Dr]


class _Keys(NamedTuple):
    nope: Array  # [B, H, K, Dn]
    rope: Array  # [B, 1, K, Dr]
    v: Array  # [B, H, K, Dv]


class _Rows(NamedTuple):
    """What the backward pass needs of each query: its output's cotangent, lse, and delta = output . cotangent."""

    dout: Array  # [B, H, Q, Dv]
    lse: Array  # [B, H, Q]
    delta: Array  # [B, H, Q]


class _Partial(NamedTuple):
    """Attention over some of the keys, not yet divided by the sum of weights; float32."""

    values: Array  # [B, H, Q, Dv]
    total: Array  # [B, H, Q]
    peak: Array  # [B, H, Q], the largest logit, -inf if no key is visible


def mla_attention(
    q_nope: Array,
    q_rope: Array,
    k_nope: Array,
    k_rope: Array,
    v: Array,
    exit: Array | None,
    scale: float,
    tiling: Tiling,
) -> tuple[Array, AttentionStats]:
    """``pallas_kernels.mla_attention.mla_attention`` with a given tiling; the result does not depend on it."""
    inputs = (q_nope, q_rope, k_nope, k_rope, v, *(() if exit is None else (exit,)))
    q_nope, q_rope, k_nope, k_rope, v, *given = vary_together(*inputs)
    exit_B1S = given[0][:, None] if given else None
    queries, keys = _Queries(q_nope, q_rope), _Keys(k_nope, k_rope[:, None], v)
    out, lse, peak = _attention(queries, keys, exit_B1S, float(scale), tiling)
    # Without the barrier XLA merges this maximum with the one over keys and reads all scores a second time.
    max_logit = lax.optimization_barrier(peak).max((0, 2))
    return out, AttentionStats(max_logit, lse)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attention(queries, keys, exit, scale, tiling):
    """Output ``[B, H, S, Dv]``, lse and row maxima ``[B, H, S]``; the latter two are treated as constants."""
    walk = _forward_unrolled if tiling.unrolled else _forward_looped
    return walk(queries, keys, exit, scale, tiling.block)


def _attention_fwd(queries, keys, exit, scale, tiling):
    out, lse, peak = _attention(queries, keys, exit, scale, tiling)
    out, lse = checkpoint_name(out, "attention_output"), checkpoint_name(lse, "attention_lse")
    return (out, lse, peak), (queries, keys, exit, out, lse)


def _attention_bwd(scale, tiling, residuals, cotangents):
    queries, keys, exit, out, lse = residuals
    dout = cotangents[0]  # those of lse and the maxima are dropped: statistics carry no gradient
    delta = (out.astype(jnp.float32) * dout.astype(jnp.float32)).sum(-1)
    walk = _backward_unrolled if tiling.unrolled else _backward_looped
    grads = walk(queries, keys, exit, _Rows(dout, lse, delta), scale, tiling.block)
    return *_cast_like(grads, (queries, keys)), None


_attention.defvjp(_attention_fwd, _attention_bwd)


# --- one tile -----------------------------------------------------------------------------------------------------

_matmul = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _logits(queries: _Queries, keys: _Keys, exit, q_start, k_start, scale) -> Array:
    """Scaled logits ``[B, H, Q, K]`` of the queries from q_start on and the keys from k_start on, -inf where masked."""
    scores = _matmul("bhqd,bhkd->bhqk", queries.nope, keys.nope)
    scores += _matmul("bhqr,bkr->bhqk", queries.rope, keys.rope[:, 0])
    q_Q1 = q_start + jnp.arange(scores.shape[2])[:, None]
    visible = k_start + jnp.arange(scores.shape[3]) <= q_Q1
    if exit is not None:
        visible = visible & (q_Q1 < exit[:, :, None, :])
    return jnp.where(visible, scale * scores, -jnp.inf)


def _attend(queries: _Queries, keys: _Keys, exit, q_start, k_start, scale) -> _Partial:
    logits = _logits(queries, keys, exit, q_start, k_start, scale)
    peak = logits.max(-1)
    weights = jnp.exp(logits - _finite(peak)[..., None])
    values = _matmul("bhqk,bhkd->bhqd", weights.astype(keys.v.dtype), keys.v)
    return _Partial(values, weights.sum(-1), peak)


def _attend_gradients(queries: _Queries, rows: _Rows, keys: _Keys, exit, q_start, k_start, scale):
    """The tile's share of the gradients of its queries and keys, float32."""
    logits = _logits(queries, keys, exit, q_start, k_start, scale)
    probs = jnp.exp(logits - _finite(rows.lse)[..., None])
    dprobs = _matmul("bhqd,bhkd->bhqk", rows.dout, keys.v)
    dscores = (scale * probs * (dprobs - rows.delta[..., None])).astype(keys.nope.dtype)
    dqueries = _Queries(
        _matmul("bhqk,bhkd->bhqd", dscores, keys.nope),
        _matmul("bhqk,bkr->bhqr", dscores, keys.rope[:, 0]),
    )
    dkeys = _Keys(
        _matmul("bhqk,bhqd->bhkd", dscores, queries.nope),
        # Summed over heads afterwards: contracting heads and queries at once is slower on XLA:CPU.
        _matmul("bhqk,bhqr->bhkr", dscores, queries.rope).sum(1, keepdims=True),
        _matmul("bhqk,bhqd->bhkd", probs.astype(rows.dout.dtype), rows.dout),
    )
    return dqueries, dkeys


def _merge(a: _Partial, b: _Partial) -> _Partial:
    """Attention over the keys of both."""
    peak = jnp.maximum(a.peak, b.peak)
    of_a, of_b = jnp.exp(a.peak - _finite(peak)), jnp.exp(b.peak - _finite(peak))
    values = of_a[..., None] * a.values + of_b[..., None] * b.values
    return _Partial(values, of_a * a.total + of_b * b.total, peak)


def _finish(partial: _Partial, dtype) -> tuple[Array, Array, Array]:
    """Output, lse and row maxima."""
    out = partial.values / jnp.where(partial.total == 0, 1, partial.total)[..., None]
    return out.astype(dtype), _finite(partial.peak) + jnp.log(partial.total), partial.peak


def _finite(x: Array) -> Array:
    """x with -inf replaced by 0, so that subtracting it from -inf is not NaN."""
    return jnp.where(x == -jnp.inf, 0, x)


# --- short sequences: unrolled, one wide tile per block ------------------------------------------------------------


def _forward_unrolled(queries: _Queries, keys: _Keys, exit, scale, block):
    """Each block of queries meets all keys up to its end at once."""
    length = queries.nope.shape[2]
    blocks = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        block_queries = _after([out for out, _, _ in blocks[-1:]], _part(queries, start, stop - start))
        seen_keys, seen_exit = _part((keys, exit), 0, stop)
        partial = _attend(block_queries, seen_keys, seen_exit, start, 0, scale)
        blocks.append(_finish(partial, keys.v.dtype))
    return _concatenate(blocks)


def _backward_unrolled(queries: _Queries, keys: _Keys, exit, rows: _Rows, scale, block):
    """Each block of keys meets all queries from its start on at once."""
    length = queries.nope.shape[2]
    starts = range(0, length, block)
    dqueries: list[list[_Queries]] = [[] for _ in starts]  # per block of queries, one share per block of keys
    dkeys: list[_Keys] = []
    done = []
    for start in starts:
        later = _after(done, _part((queries, rows), start, length - start))
        block_keys = _part((keys, exit), start, block)
        shares, dkeys_block = _attend_gradients(*later, *block_keys, start, start, scale)
        dkeys.append(dkeys_block)
        done = [shares.nope, dkeys_block.nope, dkeys_block.v]
        for i, of_block in enumerate(dqueries[start // block :]):
            of_block.append(_part(shares, i * block, block))
    summed = [jax.tree.map(lambda *shares: sum(shares), *of_block) for of_block in dqueries]
    return _concatenate(summed), _concatenate(dkeys)


def _after(done: list[Array], tree):
    """The tree, of arrays ``[B, H, ...]``, but not before the arrays ``done``: what is tested here is never true.

    Left to itself XLA:CPU starts all blocks at once and keeps the scores of all; in turn they share buffers, with a
    third of the memory and a quarter less time. An optimization_barrier is gone before blocks are scheduled.
    """
    for x in done:
        never_BH = x[:, :, 0, 0] < -jnp.inf
        tree = jax.tree.map(lambda y, never=never_BH: jnp.where(lax.expand_dims(never, range(2, y.ndim)), 0, y), tree)
    return tree


# --- long sequences: a loop over square tiles ----------------------------------------------------------------------


def _forward_looped(queries: _Queries, keys: _Keys, exit, scale, block):
    """Each block of queries meets its own block of keys and then, one by one, the earlier ones it may see."""
    length = queries.nope.shape[2]
    queries, keys, exit, reach = _whole_blocks(queries, keys, exit, block)
    indices = jnp.arange(reach.shape[0])

    def query_block(i):
        block_queries = _part(queries, i * block, block)

        def tile(j):
            block_keys, block_exit = _part((keys, exit), j * block, block)
            return _attend(block_queries, block_keys, block_exit, i * block, j * block, scale)

        visible = (indices < i) & (reach > i * block)
        visible_first = jnp.argsort(~visible)
        partial = lax.fori_loop(0, visible.sum(), lambda n, seen: _merge(seen, tile(visible_first[n])), tile(i))
        return _finish(partial, keys.v.dtype)

    return _part(_join_blocks(lax.map(query_block, indices)), 0, length)


def _backward_looped(queries: _Queries, keys: _Keys, exit, rows: _Rows, scale, block):
    """Each block of keys meets its own block of queries and then, one by one, the later ones that may see it."""
    length = queries.nope.shape[2]
    queries, keys, exit, reach = _whole_blocks(queries, keys, exit, block)
    rows = _pad(rows, block)

    def key_block(dqueries, j):
        block_keys, block_exit = _part((keys, exit), j * block, block)

        def add_tile(i, sums):
            dqueries, dkeys = sums
            block_queries, block_rows = _part((queries, rows), i * block, block)
            shares = _attend_gradients(block_queries, block_rows, block_keys, block_exit, i * block, j * block, scale)
            return _add_part(dqueries, shares[0], i * block), jax.tree.map(jnp.add, dkeys, shares[1])

        # The blocks of queries that see anything of this one are contiguous: they end where its furthest exit lies.
        stop = (reach[j] + block - 1) // block
        dqueries, dkeys = lax.fori_loop(j, stop, add_tile, (dqueries, _zeros(block_keys, rows)))
        return dqueries, _cast_like(dkeys, block_keys)

    dqueries, dkeys = lax.scan(key_block, _zeros(queries, rows), jnp.arange(reach.shape[0]))
    return _part((dqueries, _join_blocks(dkeys)), 0, length)


def _whole_blocks(queries: _Queries, keys: _Keys, exit, block):
    """The inputs padded to whole blocks of invisible tokens, and each block's largest exit over the batch."""
    batch, _, length, _ = queries.nope.shape
    if exit is None:
        exit = jnp.full((batch, 1, length), length, jnp.int32)
    queries, keys, exit = _pad((queries, keys, jnp.minimum(exit, length)), block)
    return queries, keys, exit, exit.reshape(batch, -1, block).max((0, 2))


def _zeros(tree, rows: _Rows):
    """Float32 zeros in the shapes of the tree, fit to start a loop: inside a shard_map they vary as the rows do."""
    zero = jnp.where(rows.delta == rows.delta, 0.0, 0.0)[:1, :1, :1, None]
    return jax.tree.map(lambda x: jnp.broadcast_to(zero, x.shape), tree)


# --- pieces of the sequence, which is axis 2 of every array -------------------------------------------------------


def _part(tree, start, size):
    """``size`` tokens from ``start`` on, fewer at the end if ``start`` is a Python int."""
    if isinstance(start, int):
        return jax.tree.map(lambda x: x[:, :, start : start + size], tree)
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size, 2), tree)


def _add_part(tree, part, start):
    """The tree with ``part`` added from ``start`` on; a read and a write in place, where ``.at[].add`` scatters."""

    def add(x, y):
        return lax.dynamic_update_slice_in_dim(x, lax.dynamic_slice_in_dim(x, start, y.shape[2], 2) + y, start, 2)

    return jax.tree.map(add, tree, part)


def _pad(tree, block):
    """Zeros appended up to a multiple of ``block`` tokens. A padded exit of 0 hides the token."""

    def pad(x):
        return jnp.pad(x, [(0, -x.shape[2] % block if axis == 2 else 0) for axis in range(x.ndim)])

    return jax.tree.map(pad, tree)


def _concatenate(parts: list):
    return jax.tree.map(lambda *xs: jnp.concatenate(xs, 2), *parts)


def _cast_like(tree, like):
    return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, like)


def _join_blocks(tree):
    """``[blocks, B, H, block, ...]`` to ``[B, H, S, ...]``."""

    def join(x):
        length = x.shape[0] * x.shape[3]  # not -1, which an array of width 0 leaves open
        return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], length, *x.shape[4:])

    return jax.tree.map(join, tree)
