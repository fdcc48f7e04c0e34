"""Public function of MLA attention: checks, and the choice of an implementation."""

from __future__ import annotations

from jax import Array
import jax.numpy as jnp

from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.mla_attention import mosaic, xla
from pallas_kernels.mla_attention.arrays import AttentionInputs, AttentionStats
from pallas_kernels.vma import full


def mla_attention(
    q_nope: Array,
    q_rope: Array,
    k_nope: Array,
    k_rope: Array,
    v: Array,
    *,
    exit: Array | None = None,
    start: Array | None = None,
    scale: float,
    impl: Impl = "auto",
) -> tuple[Array, AttentionStats]:
    """Softmax attention of MLA in its training form, in memory linear in the sequence length, forward and backward.

    The logit of query i and key j is ``scale * (q_nope_i . k_nope_j + q_rope_i . k_rope_j)``, and i may attend to j iff
    ``j <= i < exit[j]``: one vector describes causal sequences, packed documents, padding (``exit[t] = t``) and
    trajectory trees in depth-first order. With ``start`` it may iff ``start[j] <= i < exit[j]``: the two ends of a
    document in the two vectors make attention inside it bidirectional. Products take the inputs' dtype and accumulate
    in float32; logits, softmax and statistics are float32. A row without a visible key has output 0, lse -inf and
    gradients 0.

    The Mosaic kernels skip every block of 512 x 512 scores, smaller for short sequences, in which the mask of its row
    of the batch makes no key visible. The XLA path skips the scores above the causal diagonal without ``start`` and,
    for more than ``xla.UNROLL_UP_TO`` tokens, the tiles of 256 x 256 in which the mask of the whole batch makes no key
    visible. With ``start`` it visits, for each block of queries, the keys from the first to the last that it sees, in
    blocks of 128 tokens where devices share a CPU.

    Args:
        q_nope: ``[B, H, S, Dn]``, queries without position; float32 or bfloat16, as all arrays but ``exit``.
        q_rope: ``[B, H, S, Dr]``, rotated queries; Dr may be 0, for attention with a separate key for each head.
        k_nope: ``[B, H, S, Dn]``, keys without position.
        k_rope: ``[B, S, Dr]``, rotated key, shared by all heads and never copied for them.
        v: ``[B, H, S, Dv]``, values.
        exit: int32 ``[B, S]``, index at which the subtree of a token ends; None is causal attention.
        start: int32 ``[B, S]``, the first query that sees the token as a key; None is the token's own index, causal.
        scale: factor of the logits; ``(Dn + Dr) ** -0.5`` in K2, times mscale squared under YaRN.
        impl: ``xla`` (default except on TPU), ``pallas`` (Mosaic, TPU only), ``interpret`` (Mosaic on any machine).

    Returns:
        The output ``[B, H, S, Dv]`` in the dtype of ``v``, and its AttentionStats (no gradient flows through them).

    Raises:
        ValueError: if the shapes disagree, ``impl`` is unknown, or the Mosaic kernels are to take more than
            ``blocks.MAX_LENGTH`` tokens.

    Source: DeepSeek-V2 (arXiv:2405.04434), equations 9 to 19; the maximum logit is that of Kimi K2, section 2.1.
    """
    inputs = AttentionInputs(q_nope, q_rope, k_nope, k_rope, v=v, exit=exit, start=start)
    _check_shapes(inputs)
    chosen, (batch, heads, length, _) = resolve(impl), q_nope.shape
    if 0 in (batch, heads, length):
        arrays = q_nope, q_rope, k_nope, k_rope, v
        unseen = [full(shape, -jnp.inf, jnp.float32, *arrays) for shape in ((heads,), (batch, heads, length))]
        return full(v.shape, 0, v.dtype, *arrays), AttentionStats(*unseen)
    if chosen == "xla":
        return xla.mla_attention(inputs, scale, xla.default_tiling(length, both_directions=start is not None))
    return mosaic.mla_attention(inputs, scale, interpret=chosen == "interpret")


def _check_shapes(inputs: AttentionInputs) -> None:
    batch, heads, length, _ = inputs.q_nope.shape
    expected = {
        "q_rope": (batch, heads, length, inputs.k_rope.shape[-1]),
        "k_nope": inputs.q_nope.shape,
        "k_rope": (batch, length, inputs.q_rope.shape[-1]),
        "v": (batch, heads, length, inputs.v.shape[-1]),
        "exit": (batch, length),
        "start": (batch, length),
    }
    for name, shape in expected.items():
        array = getattr(inputs, name)
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but q_nope {inputs.q_nope.shape} requires {shape}")
