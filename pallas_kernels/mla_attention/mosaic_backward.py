"""Backward kernels: gradients of queries along rows of the score matrix, of keys and values along its columns.

Both recompute the probabilities of a tile from lse and never hold more than one tile per head. Two passes over the
visible pairs (seven products of a tile where one pass would need five) keep each gradient in one block of VMEM until
it is complete: no gradient is read back, and no float32 copy of dq passes through HBM.

The rope key is shared: its gradient is summed over the heads of a step in the kernel and over the groups of heads in
XLA. Summing over all heads in the kernel would put the heads inside the loop over key blocks, whose groups differ in
length: the grid would be padded to the longest group, and half of it would be idle under a causal mask. The partial
sums are written as ``[B, H / heads per step, Dr, S]`` float32, with the sequence along lanes, because a width of 64
would be padded to 128: with four heads per step they take half the bytes of q_rope in bfloat16.

Roofline, K2 in bfloat16, four heads of 512 x 512: 1,074 MFLOP against 1.1 MB of keys and values per step for queries,
1,342 MFLOP against 1.3 MB of queries and cotangents for keys. Both exceed 900 FLOP per byte; the highest ridge is 560
(v6e).
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


def backward(
    inputs: AttentionInputs, out: Array, lse: Array, dout: Array, settings: tile.AttentionSettings
) -> AttentionInputs:
    """Runs the backward kernels.

    Args:
        inputs: arguments of ``mosaic_forward.forward``.
        out: its output.
        lse: its lse.
        dout: cotangent of the output.
        settings: settings of the call.

    Returns:
        The gradients of the inputs; None for exit and start.
    """
    q_nope, q_rope, k_nope, k_rope, v, exit, start = inputs
    delta_BHS = (out.astype(jnp.float32) * dout.astype(jnp.float32)).sum(-1)
    # +inf for a row without a visible key: its probabilities are exp2(-inf) = 0 instead of NaN.
    log2_lse_BHS = jnp.where(lse == -jnp.inf, jnp.inf, lse * tile.LOG2_E)
    rows = dout, log2_lse_BHS[:, :, None], delta_BHS[:, :, None]
    operands = (q_nope, tile.transposed_rope(q_rope), k_nope, k_rope, v, *rows, tile.mask_rows(exit, start))
    dq_nope, dq_rope = _query_gradients(operands, (exit, start), settings)
    dk_nope, dk_rope, dv = _key_gradients(operands, (exit, start), settings)
    dk_rope = dk_rope.sum(1).swapaxes(1, 2).astype(k_rope.dtype)
    return AttentionInputs(dq_nope, dq_rope.swapaxes(2, 3), dk_nope, dk_rope, v=dv, exit=None, start=None)


def _in_specs(settings: tile.AttentionSettings, operands) -> list[pl.BlockSpec]:
    q_nope, q_rope, _, _, v, *_, mask = operands
    nope, rope, value = q_nope.shape[-1], q_rope.shape[-2], v.shape[-1]
    return [
        tile.query_spec(settings, nope),
        tile.query_rope_spec(settings, rope),
        tile.key_spec(settings, nope),
        tile.shared_key_spec(settings, rope),
        tile.key_spec(settings, value),
        tile.query_spec(settings, value),
        tile.query_row_spec(settings),
        tile.query_row_spec(settings),
        tile.mask_spec(settings, mask.shape[1]),
    ]


def _query_gradients(operands, mask, settings: tile.AttentionSettings):
    """Gradients of q_nope and of q_rope, the latter transposed as in the accumulator."""
    q_nope, q_rope, _, _, v, *_ = operands
    exit, start = mask
    nope, rope = q_nope.shape[-1], q_rope.shape[-2]
    visits = cost.max_visits(exit, settings.block, causal=start is None)
    return tile.call(
        functools.partial(_query_kernel, settings=settings),
        settings,
        tile.VisitOrder(exit, start, "query"),
        operands=operands,
        in_specs=_in_specs(settings, operands),
        outputs=[q_nope, q_rope],
        out_specs=[tile.query_spec(settings, nope), tile.query_rope_spec(settings, rope)],
        scratch=[(settings.heads, nope + rope, settings.block)],
        cost=cost.query_gradients_cost(cost.AttentionShape.of(q_nope, rope, v), settings.block, settings.heads, visits),
        name="mla_attention_query_gradients",
    )


def _key_gradients(operands, mask, settings: tile.AttentionSettings):
    """Gradients of k_nope, k_rope (float32 ``[B, H / heads per step, Dr, S]``, yet to be summed) and v."""
    q_nope, q_rope, k_nope, _, v, *_ = operands
    exit, start = mask
    visits = cost.max_visits(exit, settings.block, causal=start is None)
    nope, rope, value = q_nope.shape[-1], q_rope.shape[-2], v.shape[-1]
    batch, heads, length, _ = v.shape
    dk_rope_shape = (batch, heads // settings.heads, rope, length)
    dk_rope_spec = pl.BlockSpec(
        (None, None, rope, settings.block), lambda h, t, rows, pairs: (rows[t], h, 0, blocks.unpack(pairs[t]).key)
    )
    return tile.call(
        functools.partial(_key_kernel, settings=settings),
        settings,
        tile.VisitOrder(exit, start, "key"),
        operands=operands,
        in_specs=_in_specs(settings, operands),
        outputs=[k_nope, jax.ShapeDtypeStruct(dk_rope_shape, jnp.float32), v],
        out_specs=[tile.key_spec(settings, nope), dk_rope_spec, tile.key_spec(settings, value)],
        scratch=[(settings.heads, settings.block, nope + rope), (settings.heads, settings.block, value)],
        cost=cost.key_gradients_cost(cost.AttentionShape.of(q_nope, rope, v), settings.block, settings.heads, visits),
        name="mla_attention_key_gradients",
    )


def _query_kernel(
    rows_ref, pairs_ref, q_nope_ref, q_rope_ref, k_nope_ref, k_rope_ref, v_ref, dout_ref, lse_ref, delta_ref, mask_ref,
    dq_nope_ref, dq_rope_ref, acc_ref, *, settings: tile.AttentionSettings,
):  # fmt: skip
    pair = blocks.unpack(pairs_ref[pl.program_id(1)])

    @pl.when(pair.first)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def products(head, visible_KQ):
        q, k = tile.join(q_nope_ref[head], q_rope_ref[head].T), tile.join(k_nope_ref[head], k_rope_ref[...])
        scores_KQ = tile.log2_scores(k, q, visible_KQ, settings.scale)
        return k, scores_KQ, dot(v_ref[head], dout_ref[head], (1, 1))

    def add(head, started):
        k, scores_KQ, dprobs_KQ = started
        dscores_KQ = jnp.exp2(scores_KQ - lse_ref[head]) * (dprobs_KQ - delta_ref[head])
        acc_ref[head] += dot(k, dscores_KQ.astype(k.dtype), (0, 0))

    tile.for_each_head(pair, mask_ref, settings.heads, products, add)

    @pl.when(pair.last)
    def _():
        nope = dq_nope_ref.shape[-1]
        for head in range(settings.heads):
            dq_nope_ref[head] = (settings.scale * acc_ref[head, :nope]).T.astype(dq_nope_ref.dtype)
            dq_rope_ref[head] = (settings.scale * acc_ref[head, nope:]).astype(dq_rope_ref.dtype)


def _key_kernel(
    rows_ref, pairs_ref, q_nope_ref, q_rope_ref, k_nope_ref, k_rope_ref, v_ref, dout_ref, lse_ref, delta_ref, mask_ref,
    dk_nope_ref, dk_rope_ref, dv_ref, dk_acc_ref, dv_acc_ref, *, settings: tile.AttentionSettings,
):  # fmt: skip
    pair = blocks.unpack(pairs_ref[pl.program_id(1)])

    @pl.when(pair.first)
    def _():
        dk_acc_ref[...] = jnp.zeros_like(dk_acc_ref)
        dv_acc_ref[...] = jnp.zeros_like(dv_acc_ref)

    def products(head, visible_KQ):
        q, k = tile.join(q_nope_ref[head], q_rope_ref[head].T), tile.join(k_nope_ref[head], k_rope_ref[...])
        scores_KQ = tile.log2_scores(k, q, visible_KQ, settings.scale)
        return q, scores_KQ, dot(v_ref[head], dout_ref[head], (1, 1))

    def add(head, started):
        q, scores_KQ, dprobs_KQ = started
        probs_KQ = jnp.exp2(scores_KQ - lse_ref[head])
        dscores_KQ = probs_KQ * (dprobs_KQ - delta_ref[head])
        dk_acc_ref[head] += dot(dscores_KQ.astype(q.dtype), q, (1, 0))
        dv_acc_ref[head] += dot(probs_KQ.astype(dout_ref.dtype), dout_ref[head], (1, 0))

    tile.for_each_head(pair, mask_ref, settings.heads, products, add)

    @pl.when(pair.last)
    def _():
        nope = dk_nope_ref.shape[-1]
        dk_acc = settings.scale * dk_acc_ref[...]
        dk_nope_ref[...] = dk_acc[:, :, :nope].astype(dk_nope_ref.dtype)
        dk_rope_ref[...] = dk_acc[:, :, nope:].sum(0).T
        dv_ref[...] = dv_acc_ref[...].astype(dv_ref.dtype)
