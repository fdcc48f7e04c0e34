"""Absorbed MLA over a paged latent cache: attention of new tokens' queries to the tokens before them."""

from pallas_kernels.mla_decode.decode import mla_decode, whole_lanes
from pallas_kernels.mla_decode.mosaic import MAX_PAGES, PAGE_MULTIPLE
from pallas_kernels.mla_decode.xla import Partial, attend, merge

__all__ = ["MAX_PAGES", "PAGE_MULTIPLE", "Partial", "attend", "merge", "mla_decode", "whole_lanes"]
