"""Attention of Multi-head Latent Attention (MLA) under the exit mask, with the statistic that QK-Clip needs."""

from __future__ import annotations

from jax import Array

from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.mla_attention import mosaic, xla
from pallas_kernels.mla_attention.blocks import visited_blocks
from pallas_kernels.mla_attention.xla import AttentionStats

__all__ = ["AttentionStats", "mla_attention", "visited_blocks"]


def mla_attention(
    q_nope: Array,
    q_rope: Array,
    k_nope: Array,
    k_rope: Array,
    v: Array,
    *,
    exit: Array | None = None,
    scale: float,
    impl: Impl = "auto",
) -> tuple[Array, AttentionStats]:
    """Softmax attention of MLA in its training form, in memory linear in the sequence length, both ways.

    The logit of query i and key j is ``scale * (q_nope_i . k_nope_j + q_rope_i . k_rope_j)``, and i may attend to j iff
    ``j <= i < exit[j]``: one vector for causal sequences, packed documents, padding (``exit[t] = t``) and trajectory
    trees flattened depth first. Products take the inputs' dtype and accumulate in float32; logits, softmax and
    statistics are float32. A row that sees nothing gives output 0, lse -inf and gradients 0.

    The Mosaic kernels skip every block of 512 x 512 scores, less for short sequences, in which the exits of its row of
    the batch leave nothing visible. The XLA path skips what lies above the causal diagonal and, beyond
    ``xla.UNROLL_UP_TO`` tokens, the tiles of 256 x 256 in which the exits of the whole batch leave nothing visible.

    Args:
        q_nope: ``[B, H, S, Dn]`` queries without position, float32 or bfloat16, as all the others.
        q_rope: ``[B, H, S, Dr]`` rotated queries; Dr may be 0, which is attention with a key per head.
        k_nope: ``[B, H, S, Dn]`` keys without position.
        k_rope: ``[B, S, Dr]`` rotated key shared by all heads; never copied per head.
        v: ``[B, H, S, Dv]`` values.
        exit: int32 ``[B, S]``, index at which the subtree of a token ends; None is plain causal attention.
        scale: factor of the logits; ``(Dn + Dr) ** -0.5`` in K2, times mscale squared under YaRN.
        impl: ``xla`` (default except on TPU), ``pallas`` (Mosaic, TPU only), ``interpret`` (Mosaic's kernel, anywhere).

    Returns:
        The output ``[B, H, S, Dv]`` in the dtype of ``v``, and its AttentionStats (no gradient flows through them).

    Raises:
        ValueError: when the shapes do not fit each other, or for an unknown ``impl``.

    Source: DeepSeek-V2 (arXiv:2405.04434), equations 9 to 19; the maximum logit is that of Kimi K2, section 2.1.
    """
    batch, heads, length, _ = q_nope.shape
    expected = {
        "q_rope": (q_rope, (batch, heads, length, k_rope.shape[-1])),
        "k_nope": (k_nope, q_nope.shape),
        "k_rope": (k_rope, (batch, length, q_rope.shape[-1])),
        "v": (v, (batch, heads, length, v.shape[-1])),
        "exit": (exit, (batch, length)),
    }
    for name, (array, shape) in expected.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but q_nope {q_nope.shape} asks for {shape}")
    inputs = q_nope, q_rope, k_nope, k_rope, v, exit, scale
    chosen = resolve(impl)
    if chosen == "xla":
        return xla.mla_attention(*inputs, xla.default_tiling(length))
    return mosaic.mla_attention(*inputs, interpret=chosen == "interpret")
