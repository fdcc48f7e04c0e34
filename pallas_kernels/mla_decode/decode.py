"""Public functions of decoding with MLA: checks, and the choice of an implementation."""

from __future__ import annotations

from jax import Array
import jax.numpy as jnp

from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.mla_decode import mosaic, xla
from pallas_kernels.mla_decode.mosaic import LANES
from pallas_kernels.mla_decode.xla import PagedCache, Partial
from pallas_kernels.vma import full


def whole_lanes(width: int) -> int:
    """Rounds a cache's width W up to whole lanes of a TPU's memory: 640 for K2's 576."""
    return -(-width // LANES) * LANES


def mla_decode(
    q: Array,
    cache: Array,
    layer: Array | int,
    pages: Array,
    lengths: Array,
    *,
    latent: int,
    scale: float,
    impl: Impl = "auto",
) -> Partial:
    """Softmax attention of each sequence's queries to its cached latents, which are both keys and values.

    The logit of query i and cached token j is ``scale * q_i . cache_j`` over all W numbers, and its value is the first
    ``latent`` of them. The queries are absorbed (multiplied by the key half of the up-projection) and the output is
    still latent (the value half is applied afterwards), so that the cache is read once for all heads and never
    expanded. Products take the cache's dtype and accumulate in float32. Not differentiable: it serves inference.

    On a TPU, W should be ``whole_lanes(W)``, padded with zeros. Memory pads rows to it anyway, and
    for any other width XLA copies the whole cache into that layout at every call.

    Args:
        q: ``[N, Q, W]``, queries of each sequence: heads, or heads times new tokens; float32 or bfloat16.
        cache: ``[L, P, S, W]``, pages of S tokens of every layer, in the dtype of q.
        layer: int32 ``[]``, the layer whose pages are read; the kernel does not slice the cache.
        pages: int32 ``[N, M]``, pages of each sequence in order. Entries beyond its length are ignored, but the first
            must be a valid page, even for an empty sequence. On a TPU N M is at most MAX_PAGES.
        lengths: int32 ``[N]``, number of cached tokens of each sequence, at most M S; 0 for an empty sequence.
        latent: R, width of the values.
        scale: factor of the logits.
        impl: see ``pallas_kernels.implementation``.

    Returns:
        Partial of ``[N, Q, R]`` and ``[N, Q]``, to be merged with the attention of the new tokens to each other.

    Raises:
        ValueError: if shapes or dtypes disagree, the page table is too large for the kernel, or S is not a multiple of
            PAGE_MULTIPLE.

    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2 and appendix C.
    """
    if q.ndim != 3 or cache.ndim != 4 or q.shape[-1] != cache.shape[-1] or q.dtype != cache.dtype:
        raise ValueError(f"expected q [N, Q, W] and cache [L, P, S, W] of one dtype; got {q.shape}, {cache.shape}")
    if pages.shape[:-1] != q.shape[:1] or lengths.shape != q.shape[:1] or not 0 < latent <= q.shape[-1]:
        raise ValueError(f"pages {pages.shape}, lengths {lengths.shape} or latent {latent} do not fit q {q.shape}")
    chosen = resolve(impl)
    if 0 in (q.size, cache.size, pages.size):
        arrays = q, cache, pages, lengths
        unseen = full(q.shape[:2], -jnp.inf, jnp.float32, *arrays)
        return Partial(full((*q.shape[:2], latent), 0, jnp.float32, *arrays), unseen)
    paged = PagedCache(cache, layer, pages, lengths)
    if chosen == "xla":
        return xla.mla_decode(q, paged, latent, scale)
    return mosaic.mla_decode(q, paged, latent, scale, interpret=chosen == "interpret")
