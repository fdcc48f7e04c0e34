"""Forward kernel: for each block of queries, the online softmax over its scheduled blocks of keys.

A step computes ``HEADS_PER_STEP`` heads of one pair of 512 x 512 tokens. Queries stay in VMEM during their group of
steps; keys, values and the shared rope key (once for all heads of the step) stream through double buffers. Scores,
masks, softmax and the product with the values are fused. The results are the output, one float32 of lse for each query,
and one running maximum for each head and lane, ``[B, H, 1, 128]``: 512 bytes for each head of a sequence of any length.

Roofline, K2 in bfloat16 with four heads: 671 MFLOP against 1.1 MB of keys and values per step, 600 FLOP per byte. The
ridge is at 240 on v5e, 166 on v5p, 560 on v6e and 312 on tpu7x, so that the matrix unit, not HBM, is the bound. Larger
blocks would only add work above the causal diagonal and between the branches of a tree.
"""

from __future__ import annotations

import functools

import jax
from jax import Array
from jax.experimental import pallas as pl
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks, cost, tile
from pallas_kernels.mla_attention.arrays import AttentionInputs
from pallas_kernels.ops import dot


def forward(inputs: AttentionInputs, settings: tile.AttentionSettings) -> tuple[Array, Array, Array]:
    """Runs the forward kernel.

    Args:
        inputs: arrays of the call. S is a multiple of the block, exits are at most S, and Dr is at least 1.
        settings: settings of the call.

    Returns:
        Output ``[B, H, S, Dv]``, lse ``[B, H, S]`` and maximum logit ``[H]``.
    """
    q_nope, q_rope, k_nope, k_rope, v, exit, start = inputs
    mask = tile.mask_rows(exit, start)
    batch, heads, length, nope = q_nope.shape
    rope, value = q_rope.shape[-1], v.shape[-1]
    lanes = blocks.SMALLEST_BLOCK
    out, lse, peak = tile.call(
        functools.partial(_kernel, settings=settings),
        settings,
        tile.VisitOrder(exit, start, "query"),
        operands=(q_nope, tile.transposed_rope(q_rope), k_nope, k_rope, v, mask),
        in_specs=[
            tile.query_spec(settings, nope),
            tile.query_rope_spec(settings, rope),
            tile.key_spec(settings, nope),
            tile.shared_key_spec(settings, rope),
            tile.key_spec(settings, value),
            tile.mask_spec(settings, mask.shape[1]),
        ],
        outputs=[
            jax.ShapeDtypeStruct(v.shape, v.dtype),
            jax.ShapeDtypeStruct((batch, heads, 1, length), jnp.float32),
            jax.ShapeDtypeStruct((batch, heads, 1, lanes), jnp.float32),
        ],
        out_specs=[
            tile.query_spec(settings, value),
            tile.query_row_spec(settings),
            pl.BlockSpec((None, settings.heads, 1, lanes), lambda h, t, rows, pairs: (rows[t], h, 0, 0)),
        ],
        scratch=[
            (settings.heads, 1, settings.block),
            (settings.heads, 1, settings.block),
            (settings.heads, value, settings.block),
        ],
        cost=cost.forward_cost(
            cost.AttentionShape.of(q_nope, rope, v),
            settings.block,
            settings.heads,
            cost.max_visits(exit, settings.block, causal=start is None),
        ),
        name="mla_attention_forward",
        maxima=(2,),
    )
    peak_H = peak.max((0, 2, 3))
    return out, lse[:, :, 0], jnp.where(peak_H == tile.LOWEST, -jnp.inf, peak_H / tile.LOG2_E)


def _kernel(
    rows_ref, pairs_ref, q_nope_ref, q_rope_ref, k_nope_ref, k_rope_ref, v_ref, mask_ref,  # inputs
    out_ref, lse_ref, peak_ref, m_ref, l_ref, acc_ref, *, settings: tile.AttentionSettings,
):  # fmt: skip
    pair = blocks.unpack(pairs_ref[pl.program_id(1)])

    @pl.when((pair.query == 0) | (pairs_ref[pl.program_id(1)] == pairs_ref[0]))  # a panel may begin inside a row
    def _():
        peak_ref[...] = jnp.full_like(peak_ref, tile.LOWEST)

    @pl.when(pair.first)
    def _():
        m_ref[...] = jnp.full_like(m_ref, tile.LOWEST)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def scores(head, visible_KQ):
        q, k = tile.join(q_nope_ref[head], q_rope_ref[head].T), tile.join(k_nope_ref[head], k_rope_ref[...])
        return tile.log2_scores(k, q, visible_KQ, settings.scale)

    def attend(head, scores_KQ):
        m_1Q = jnp.maximum(m_ref[head], scores_KQ.max(0, keepdims=True))
        weights_KQ = jnp.exp2(scores_KQ - m_1Q)
        kept_1Q = jnp.exp2(m_ref[head] - m_1Q)
        m_ref[head] = m_1Q
        l_ref[head] = kept_1Q * l_ref[head] + weights_KQ.sum(0, keepdims=True)
        acc_ref[head] = kept_1Q * acc_ref[head] + dot(v_ref[head], weights_KQ.astype(v_ref.dtype), (0, 0))

    tile.for_each_head(pair, mask_ref, settings.heads, scores, attend)

    @pl.when(pair.last)
    def _():
        for head in range(settings.heads):
            m_1Q, l_1Q = m_ref[head], l_ref[head]
            out_ref[head] = (acc_ref[head] / jnp.where(l_1Q == 0, 1, l_1Q)).T.astype(out_ref.dtype)
            lse_ref[head] = (m_1Q + jnp.log2(l_1Q)) / tile.LOG2_E
            for start in range(0, settings.block, peak_ref.shape[-1]):
                peak_ref[head] = jnp.maximum(peak_ref[head], m_1Q[:, start : start + peak_ref.shape[-1]])
