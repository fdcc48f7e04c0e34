"""The records of an attention call: its input arrays, and the statistics that it returns beside the output."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array


class AttentionInputs(NamedTuple):
    """Arrays of one call of ``mla_attention``.

    Attributes:
        q_nope: ``[B, H, S, Dn]``, queries without position.
        q_rope: ``[B, H, S, Dr]``, rotated queries.
        k_nope: ``[B, H, S, Dn]``, keys without position.
        k_rope: ``[B, S, Dr]``, rotated key, shared by all heads.
        v: ``[B, H, S, Dv]``, values.
        exit: int32 ``[B, S]``, index at which the subtree of a token ends; None is causal attention.
        start: int32 ``[B, S]``, first query that sees a token as a key; None is the token itself, causal attention.
    """

    q_nope: Array
    q_rope: Array
    k_nope: Array
    k_rope: Array
    v: Array
    exit: Array | None
    start: Array | None = None


class AttentionStats(NamedTuple):
    """Statistics of attention; no gradient flows through them.

    Attributes:
        max_logit: float32 ``[H]``, each head's largest scaled visible logit over the call's batch, -inf if no logit is
            visible. QK-Clip reads it.
        lse: float32 ``[B, H, S]``, log of the sum of a row's exponentiated visible logits, -inf if none is visible.
    """

    max_logit: Array
    lse: Array
