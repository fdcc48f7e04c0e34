"""MLA flash attention on TPU: the custom VJP around the Mosaic kernels, and the shapes that they require.

Source: FlashAttention-2 (Dao, arXiv:2307.08691), algorithms 1 and 2. ``tile`` describes the layout of tiles, ``blocks``
the blocks that are visited, ``mosaic_forward`` and ``mosaic_backward`` what is fused.
"""

from __future__ import annotations

import functools

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks, mosaic_backward, mosaic_forward, tile
from pallas_kernels.mla_attention.arrays import AttentionInputs, AttentionStats
from pallas_kernels.vma import vary_together


def mla_attention(
    inputs: AttentionInputs,
    scale: float,
    *,
    interpret: bool | pltpu.InterpretParams = False,
    block: int | None = None,
) -> tuple[Array, AttentionStats]:
    """``pallas_kernels.mla_attention.mla_attention`` by Mosaic kernels; the result does not depend on the block.

    A length that is not a multiple of the block is padded, which copies the inputs. If the schedule of
    the batch does not fit into scalar memory, a kernel computes one panel after the other (``blocks``).

    Args:
        inputs: arrays of the call.
        scale: factor of the logits.
        interpret: as in ``pallas_call``.
        block: tokens of a block, a multiple of 128; None chooses it.

    Raises:
        ValueError: if the dtype is neither float32 nor bfloat16, or a sequence has more than
            ``blocks.MAX_BLOCKS`` blocks.
    """
    batch, heads, length, _ = inputs.q_nope.shape
    if inputs.q_nope.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"the kernels take float32 or bfloat16, not {inputs.q_nope.dtype}")
    block = block or blocks.block_size(length)
    causal = inputs.start is None
    inputs = inputs._replace(
        exit=blocks.whole_blocks(inputs.exit, batch, length, block),
        start=None if causal else blocks.whole_blocks(inputs.start, batch, length, block),
    )
    arrays = [_pad(x, -length % block, x is inputs.q_rope or x is inputs.k_rope) for x in inputs[:5]]
    settings = tile.AttentionSettings(float(scale), block, tile.heads_per_step(heads), interpret)
    masks = [inputs.exit] if causal else [inputs.exit, inputs.start]
    out, lse, max_logit = _attention(AttentionInputs(*vary_together(*arrays, *masks)), settings)
    return out[:, :, :length], AttentionStats(max_logit, lse[:, :, :length])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attention(inputs: AttentionInputs, settings: tile.AttentionSettings):
    """Output, lse and maximum logit; the latter two are treated as constants."""
    return mosaic_forward.forward(inputs, settings)


def _attention_fwd(inputs, settings):
    out, lse, max_logit = mosaic_forward.forward(inputs, settings)
    out, lse = checkpoint_name(out, "attention_output"), checkpoint_name(lse, "attention_lse")
    return (out, lse, max_logit), (inputs, out, lse)


def _attention_bwd(settings: tile.AttentionSettings, residuals, cotangents):
    inputs, out, lse = residuals
    # The cotangents of lse and the maxima are dropped, since statistics carry no gradient.
    return (mosaic_backward.backward(inputs, out, lse, cotangents[0], settings),)


_attention.defvjp(_attention_fwd, _attention_bwd)


def _pad(x: Array, tokens: int, is_rope: bool) -> Array:
    """Appends ``tokens`` zeros to the sequence, and a zero column to a rope of width 0, which no block can have."""
    columns = 1 if is_rope and x.shape[-1] == 0 else 0
    if not tokens and not columns:
        return x
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, tokens), (0, columns)])
