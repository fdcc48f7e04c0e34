"""MLA flash attention on TPU: the custom VJP around the Mosaic kernels, and the shapes that they ask for.

Source: FlashAttention-2 (Dao, arXiv:2307.08691), algorithms 1 and 2; ``tile`` says how the tiles are held, ``blocks``
which are visited, ``mosaic_forward`` and ``mosaic_backward`` what is fused.
"""

from __future__ import annotations

import functools

import jax
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks, mosaic_backward, mosaic_forward, tile
from pallas_kernels.mla_attention.xla import AttentionStats
from pallas_kernels.varying import vary_together


def mla_attention(
    q_nope: Array,
    q_rope: Array,
    k_nope: Array,
    k_rope: Array,
    v: Array,
    exit: Array | None,
    scale: float,
    *,
    interpret: bool | pltpu.InterpretParams = False,
    block: int | None = None,
) -> tuple[Array, AttentionStats]:
    """``pallas_kernels.mla_attention.mla_attention`` by Mosaic kernels; the result does not depend on the block.

    A length that the block (a multiple of 128) does not divide is padded, which copies the inputs. Rows of the batch
    whose schedules do not fit into scalar memory together are computed one after the other.

    Raises:
        ValueError: another dtype than float32 or bfloat16, or a sequence too long even by itself.
    """
    batch, heads, length, _ = q_nope.shape
    if q_nope.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"the kernels take float32 or bfloat16, not {q_nope.dtype}")
    block = block or blocks.block_size(length)
    exit = blocks.whole_blocks(exit, batch, length, block)
    if batch > 1 and not blocks.fits(batch, exit.shape[1] // block):

        def one_row(row: tuple[Array, ...]) -> tuple[Array, AttentionStats]:
            *arrays, row_exit = (x[None] for x in row)
            out, stats = mla_attention(*arrays, row_exit[:, :length], scale, interpret=interpret, block=block)
            return out[0], AttentionStats(stats.max_logit, stats.lse[0])

        out, stats = lax.map(one_row, (q_nope, q_rope, k_nope, k_rope, v, exit))
        return out, AttentionStats(stats.max_logit.max(0), stats.lse)
    arrays = [_pad(x, -length % block, x is q_rope or x is k_rope) for x in (q_nope, q_rope, k_nope, k_rope, v)]
    plan = tile.Plan(float(scale), block, tile.heads_per_step(heads), interpret)
    out, lse, max_logit = _attention(*vary_together(*arrays, exit), plan)
    return out[:, :, :length], AttentionStats(max_logit, lse[:, :, :length])


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attention(q_nope, q_rope, k_nope, k_rope, v, exit, plan: tile.Plan):
    """Output, lse and maximum logit; the latter two are treated as constants."""
    return mosaic_forward.forward(q_nope, q_rope, k_nope, k_rope, v, exit, plan)


def _attention_fwd(*inputs_and_plan):
    *inputs, plan = inputs_and_plan
    out, lse, max_logit = mosaic_forward.forward(*inputs, plan)
    out, lse = checkpoint_name(out, "attention_output"), checkpoint_name(lse, "attention_lse")
    return (out, lse, max_logit), (inputs, out, lse)


def _attention_bwd(plan: tile.Plan, residuals, cotangents):
    inputs, out, lse = residuals
    # The cotangents of lse and the maxima are dropped: statistics carry no gradient.
    return *mosaic_backward.backward(inputs, out, lse, cotangents[0], plan), None


_attention.defvjp(_attention_fwd, _attention_bwd)


def _pad(x: Array, tokens: int, is_rope: bool) -> Array:
    """``tokens`` zeros appended to the sequence, and a zero column to a rope of width 0, which no block can have."""
    columns = 1 if is_rope and x.shape[-1] == 0 else 0
    if not tokens and not columns:
        return x
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, tokens), (0, columns)])
