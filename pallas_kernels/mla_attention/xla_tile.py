"""One tile of attention in plain XLA: a range of queries against a range of keys, forward and backward.

The shared rope key is ``[B, 1, S, Dr]`` and a mask ``[B, 1, S]``: the sequence is axis 2 of every array.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from jax import Array
import jax.numpy as jnp


class Queries(NamedTuple):
    """Queries of a tile.

    Attributes:
        nope: ``[B, H, Q, Dn]``.
        rope: ``[B, H, Q, Dr]``.
    """

    nope: Array
    rope: Array


class Keys(NamedTuple):
    """Keys and values of a tile.

    Attributes:
        nope: ``[B, H, K, Dn]``.
        rope: ``[B, 1, K, Dr]``.
        v: ``[B, H, K, Dv]``.
    """

    nope: Array
    rope: Array
    v: Array


class KeyMask(NamedTuple):
    """Which queries see a key: ``start[j] <= i < exit[j]``.

    Attributes:
        exit: int32 ``[B, 1, K]``; None is no limit.
        start: int32 ``[B, 1, K]``; None is the key's own index, causal attention.
    """

    exit: Array | None
    start: Array | None


class QueryResiduals(NamedTuple):
    """Values of each query for the backward pass.

    Attributes:
        dout: ``[B, H, Q, Dv]``, cotangent of the output.
        lse: float32 ``[B, H, Q]``, log of the sum of exponentiated logits.
        delta: float32 ``[B, H, Q]``, output . cotangent.
    """

    dout: Array
    lse: Array
    delta: Array


class PartialAttention(NamedTuple):
    """Attention to some of the keys, not yet divided by the sum of weights; float32.

    Attributes:
        values: ``[B, H, Q, Dv]``, sum of the weighted values.
        total: ``[B, H, Q]``, sum of the weights.
        peak: ``[B, H, Q]``, largest logit, -inf if no key is visible.
    """

    values: Array
    total: Array
    peak: Array


_matmul = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _logits(queries: Queries, keys: Keys, mask: KeyMask, *, q_start, k_start, scale) -> Array:
    """Scaled logits ``[B, H, Q, K]`` of queries from q_start on and keys from k_start on; -inf where masked."""
    scores_BHQK = _matmul("bhqd,bhkd->bhqk", queries.nope, keys.nope)
    scores_BHQK += _matmul("bhqr,bkr->bhqk", queries.rope, keys.rope[:, 0])
    q_Q1 = q_start + jnp.arange(scores_BHQK.shape[2])[:, None]
    first = k_start + jnp.arange(scores_BHQK.shape[3]) if mask.start is None else mask.start[:, :, None, :]
    visible = first <= q_Q1
    if mask.exit is not None:
        visible = visible & (q_Q1 < mask.exit[:, :, None, :])
    return jnp.where(visible, scale * scores_BHQK, -jnp.inf)


def attend(queries: Queries, keys: Keys, mask: KeyMask, **tile) -> PartialAttention:
    """Attention of the tile's queries to its keys; ``tile`` is q_start, k_start and scale."""
    logits_BHQK = _logits(queries, keys, mask, **tile)
    peak_BHQ = logits_BHQK.max(-1)
    weights_BHQK = jnp.exp(logits_BHQK - _finite(peak_BHQ)[..., None])
    values = _matmul("bhqk,bhkd->bhqd", weights_BHQK.astype(keys.v.dtype), keys.v)
    return PartialAttention(values, weights_BHQK.sum(-1), peak_BHQ)


def attend_gradients(queries: Queries, rows: QueryResiduals, keys: Keys, mask: KeyMask, *, q_start, k_start, scale):
    """Share of a tile in the gradients of its queries and keys, float32."""
    logits_BHQK = _logits(queries, keys, mask, q_start=q_start, k_start=k_start, scale=scale)
    probs_BHQK = jnp.exp(logits_BHQK - _finite(rows.lse)[..., None])
    dprobs_BHQK = _matmul("bhqd,bhkd->bhqk", rows.dout, keys.v)
    dscores_BHQK = (scale * probs_BHQK * (dprobs_BHQK - rows.delta[..., None])).astype(keys.nope.dtype)
    dqueries = Queries(
        _matmul("bhqk,bhkd->bhqd", dscores_BHQK, keys.nope),
        _matmul("bhqk,bkr->bhqr", dscores_BHQK, keys.rope[:, 0]),
    )
    dkeys = Keys(
        _matmul("bhqk,bhqd->bhkd", dscores_BHQK, queries.nope),
        # Summed over heads afterwards: contracting heads and queries at once is slower on XLA:CPU.
        _matmul("bhqk,bhqr->bhkr", dscores_BHQK, queries.rope).sum(1, keepdims=True),
        _matmul("bhqk,bhqd->bhkd", probs_BHQK.astype(rows.dout.dtype), rows.dout),
    )
    return dqueries, dkeys


def merge(a: PartialAttention, b: PartialAttention) -> PartialAttention:
    """Attention to the keys of both."""
    peak_BHQ = jnp.maximum(a.peak, b.peak)
    kept_a_BHQ, kept_b_BHQ = jnp.exp(a.peak - _finite(peak_BHQ)), jnp.exp(b.peak - _finite(peak_BHQ))
    values = kept_a_BHQ[..., None] * a.values + kept_b_BHQ[..., None] * b.values
    return PartialAttention(values, kept_a_BHQ * a.total + kept_b_BHQ * b.total, peak_BHQ)


def finish(partial: PartialAttention, dtype) -> tuple[Array, Array, Array]:
    """Output ``[B, H, Q, Dv]`` in ``dtype``, lse and row maxima ``[B, H, Q]``."""
    out = partial.values / jnp.where(partial.total == 0, 1, partial.total)[..., None]
    return out.astype(dtype), _finite(partial.peak) + jnp.log(partial.total), partial.peak


def _finite(x: Array) -> Array:
    """Replaces -inf by 0, so that subtracting the result from -inf does not give NaN."""
    return jnp.where(x == -jnp.inf, 0, x)
