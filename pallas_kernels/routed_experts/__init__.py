"""Dropless routed experts: the gated sum of each token's K chosen SwiGLU experts."""

from pallas_kernels.routed_experts.experts import D_MULTIPLE, F_MULTIPLE, NAMES, kept_rows, routed_experts
from pallas_kernels.routed_experts.plan import CAPACITY_FACTOR, expert_counts
from pallas_kernels.routed_experts.routing import TooManyCopiesError

__all__ = [
    "CAPACITY_FACTOR",
    "D_MULTIPLE",
    "F_MULTIPLE",
    "NAMES",
    "TooManyCopiesError",
    "expert_counts",
    "kept_rows",
    "routed_experts",
]
