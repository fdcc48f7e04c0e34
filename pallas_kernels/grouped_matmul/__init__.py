"""Grouped matmuls: rows sorted by group times the weights of their groups, and the gradient of the weights."""

from pallas_kernels.grouped_matmul.matmul import grouped_matmul, grouped_matmul_transposed

__all__ = ["grouped_matmul", "grouped_matmul_transposed"]
