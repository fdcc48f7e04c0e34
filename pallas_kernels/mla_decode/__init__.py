"""Absorbed MLA over a paged latent cache: what a new token's queries read of the tokens before it."""

from __future__ import annotations

from jax import Array

from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.mla_decode import mosaic, xla
from pallas_kernels.mla_decode.mosaic import MOST_PAGES, PAGE_MULTIPLE
from pallas_kernels.mla_decode.xla import Partial, attend, merge

__all__ = ["MOST_PAGES", "PAGE_MULTIPLE", "Partial", "attend", "merge", "mla_decode"]


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
    """Softmax attention of each sequence's queries over its cached latents, which are keys and values at once.

    The logit of query i and cached token j is ``scale * q_i . cache_j`` over all W numbers, its value the first
    ``latent`` of them. The queries are absorbed (multiplied by the key half of the up-projection) and the output is
    still latent (the value half comes after), so that the cache is read once for all heads and nothing is expanded.
    Products take the cache's dtype and accumulate in float32. Not differentiable: it serves inference.

    On a TPU make W a multiple of 128 (640 for K2's 576, the rest zeros): that is the room it takes in memory anyway,
    and otherwise XLA copies the whole cache into that layout at every call.

    Args:
        q: ``[N, Q, W]``, the queries of each sequence: heads, or heads times new tokens; float32 or bfloat16.
        cache: ``[L, P, S, W]``, pages of S tokens of every layer, in the dtype of q.
        layer: int32 ``[]``, whose pages to read; the layer is never cut out of the cache.
        pages: int32 ``[N, M]``, pages of each sequence in order; what lies beyond its length does not count, but the
            first must be a page, even of a sequence that sees nothing. On a TPU N M is at most MOST_PAGES.
        lengths: int32 ``[N]``, cached tokens of each sequence, at most M S; 0 is a sequence that sees nothing.
        latent: R, width of the values.
        scale: factor of the logits.
        impl: see ``pallas_kernels.implementation``.

    Returns:
        Partial of ``[N, Q, R]`` and ``[N, Q]``, to be merged with what the new tokens see of each other.

    Raises:
        ValueError: when shapes or dtypes do not fit each other, or the kernel cannot hold the page table, or S is not
            a multiple of PAGE_MULTIPLE.

    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2 and appendix C.
    """
    if q.ndim != 3 or cache.ndim != 4 or q.shape[-1] != cache.shape[-1] or q.dtype != cache.dtype:
        raise ValueError(f"expected q [N, Q, W] and cache [L, P, S, W] of one dtype; got {q.shape}, {cache.shape}")
    if pages.shape[:-1] != q.shape[:1] or lengths.shape != q.shape[:1] or not 0 < latent <= q.shape[-1]:
        raise ValueError(f"pages {pages.shape}, lengths {lengths.shape} or latent {latent} do not fit q {q.shape}")
    chosen = resolve(impl)
    if chosen == "xla":
        return xla.mla_decode(q, cache, layer, pages, lengths, latent, scale)
    return mosaic.mla_decode(q, cache, layer, pages, lengths, latent, scale, interpret=chosen == "interpret")
