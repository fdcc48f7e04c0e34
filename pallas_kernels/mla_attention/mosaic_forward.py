"""Forward kernel: for each block of queries, the online softmax over the blocks of keys on its list.

A step is ``HEADS_PER_STEP`` heads of one pair of 512 x 512 tokens. Queries stay in VMEM through their group of steps;
keys, values and the shared rope key (once for all heads of the step) stream through double buffers. Scores, masks,
softmax and the product with the values are fused; what leaves is the output, one float32 of lse per query and one
running maximum per head and lane, ``[B, H, 1, 128]``: 512 bytes for each head of a sequence of any length.

Roofline, K2 in bfloat16 with four heads: 671 MFLOP against 1.1 MB of keys and values per step, 600 FLOP per byte. The
ridge is at 240 on v5e, 166 on v5p, 560 on v6e and 312 on tpu7x, so that the matrix unit, not HBM, is the bound; larger
blocks would only add work above the causal diagonal and between the branches of a tree.
"""

from __future__ import annotations

import functools

import jax
from jax import Array
from jax.experimental import pallas as pl
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks, cost, tile

_LOWEST = float(jnp.finfo(jnp.float32).min)
"""Where running maxima start: unlike -inf it can be subtracted from the -inf of a masked score."""


def forward(q_nope, q_rope, k_nope, k_rope, v, exit, plan: tile.Plan) -> tuple[Array, Array, Array]:
    """Output ``[B, H, S, Dv]``, lse ``[B, H, S]`` and maximum logit ``[H]``; S is a multiple of the block.

    ``exit`` is int32 ``[B, S]``, at most S; Dr is at least 1.
    """
    batch, heads, length, nope = q_nope.shape
    rope, value = q_rope.shape[-1], v.shape[-1]
    lanes = blocks.SMALLEST_BLOCK
    out, lse, peak = tile.call(
        functools.partial(_kernel, plan=plan),
        plan,
        blocks.schedule(exit, plan.block, "query"),
        inputs=(q_nope, tile.transposed_rope(q_rope), k_nope, k_rope, v, exit[:, None]),
        in_specs=[
            tile.of_queries(plan, nope),
            tile.of_query_ropes(plan, rope),
            tile.of_keys(plan, nope),
            tile.of_shared_keys(plan, rope),
            tile.of_keys(plan, value),
            tile.of_exits(plan),
        ],
        outputs=[
            jax.ShapeDtypeStruct(v.shape, v.dtype),
            jax.ShapeDtypeStruct((batch, heads, 1, length), jnp.float32),
            jax.ShapeDtypeStruct((batch, heads, 1, lanes), jnp.float32),
        ],
        out_specs=[
            tile.of_queries(plan, value),
            tile.of_query_rows(plan),
            pl.BlockSpec((None, plan.heads, 1, lanes), lambda h, t, rows, pairs: (rows[t], h, 0, 0)),
        ],
        scratch=[(plan.heads, 1, plan.block), (plan.heads, 1, plan.block), (plan.heads, value, plan.block)],
        cost=cost.forward_cost(cost.AttentionShape.of(q_nope, rope, v), plan.block, plan.heads),
        name="mla_attention_forward",
    )
    peak_H = peak.max((0, 2, 3))
    return out, lse[:, :, 0], jnp.where(peak_H == _LOWEST, -jnp.inf, peak_H / tile.LOG2_E)


def _kernel(
    rows_ref, pairs_ref, q_nope_ref, q_rope_ref, k_nope_ref, k_rope_ref, v_ref, exit_ref,  # inputs
    out_ref, lse_ref, peak_ref, m_ref, l_ref, acc_ref, *, plan: tile.Plan,
):  # fmt: skip
    pair = blocks.unpack(pairs_ref[pl.program_id(1)])

    @pl.when(pair.query == 0)
    def _():
        peak_ref[...] = jnp.full_like(peak_ref, _LOWEST)

    @pl.when(pair.first)
    def _():
        m_ref[...] = jnp.full_like(m_ref, _LOWEST)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def scores(head, visible_KQ):
        q, k = tile.join(q_nope_ref[head], q_rope_ref[head].T), tile.join(k_nope_ref[head], k_rope_ref[...])
        return tile.log2_scores(k, q, visible_KQ, plan.scale)

    def attend(head, scores_KQ):
        m_1Q = jnp.maximum(m_ref[head], scores_KQ.max(0, keepdims=True))
        weights_KQ = jnp.exp2(scores_KQ - m_1Q)
        kept_1Q = jnp.exp2(m_ref[head] - m_1Q)
        m_ref[head] = m_1Q
        l_ref[head] = kept_1Q * l_ref[head] + weights_KQ.sum(0, keepdims=True)
        acc_ref[head] = kept_1Q * acc_ref[head] + tile.dot(v_ref[head], weights_KQ.astype(v_ref.dtype), (0, 0))

    tile.for_each_head(pair, exit_ref, plan.heads, scores, attend)

    @pl.when(pair.last)
    def _():
        for head in range(plan.heads):
            m_1Q, l_1Q = m_ref[head], l_ref[head]
            out_ref[head] = (acc_ref[head] / jnp.where(l_1Q == 0, 1, l_1Q)).T.astype(out_ref.dtype)
            lse_ref[head] = (m_1Q + jnp.log2(l_1Q)) / tile.LOG2_E
            for start in range(0, plan.block, peak_ref.shape[-1]):
                peak_ref[head] = jnp.maximum(peak_ref[head], m_1Q[:, start : start + peak_ref.shape[-1]])
