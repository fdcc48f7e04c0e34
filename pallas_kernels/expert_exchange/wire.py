"""What an exchange puts on the wire, counted from a routing; NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pallas_kernels.expert_exchange.plan import row_groups


class WireBytes(NamedTuple):
    """Bytes that each rank sends to others in one forward pass, int64 [P] each.

    The backward pass sends `returned` for the dispatch and `sent` for the combine again (in a `dense` or `ring` one the
    float32 sums are the dispatch's), and half of `choices` less the counts: the gates' cotangents.
    """

    sent: np.ndarray  # tokens' rows
    returned: np.ndarray  # experts' rows
    choices: np.ndarray  # ids, gates, starts and counts


def exchanged_bytes(
    expert_ids: np.ndarray,
    *,
    experts: int,
    width: int,
    itemsize: int,
    backend: str,
    slots: int | None = None,
) -> WireBytes:
    """Count the bytes that each rank sends to others; what stays on a rank is not counted, nor are hops.

    Args:
        expert_ids: int [P, T, K] in [0, E], the routing of all ranks' tokens.
        experts: E.
        width: D.
        itemsize: bytes of one element of a row.
        backend: `dense`, `ring`, `a2a`, `ragged` or `dma`.
        slots: as of `expert_dispatch`.

    Raises:
        ValueError: an unknown backend.
    """
    ranks, tokens, active = expert_ids.shape
    slots = row_groups(tokens if slots is None else slots)
    if backend in ("dense", "ring"):
        everything = np.full(ranks, (ranks - 1) * tokens, np.int64)
        # The sum over ranks is float32 on its way.
        return WireBytes(everything * width * itemsize, everything * width * max(4, itemsize), everything * 8 * active)
    padded = np.full(ranks, (ranks - 1) * slots, np.int64)
    choices = padded * 8 * active
    if backend == "a2a":
        return WireBytes(padded * width * itemsize, padded * width * itemsize, choices)
    if backend not in ("ragged", "dma"):
        raise ValueError(f"unknown backend {backend!r}")
    rows_PP = np.minimum(row_counts(expert_ids, experts), slots)
    if backend == "dma":
        rows_PP = row_groups(rows_PP)
    np.fill_diagonal(rows_PP, 0)
    size = width * itemsize
    return WireBytes(rows_PP.sum(1) * size, rows_PP.sum(0) * size, choices + (ranks - 1) * 8)


def row_counts(expert_ids: np.ndarray, experts: int) -> np.ndarray:
    """Count the tokens of each rank that have at least one expert on each rank: int64 [P, P], from row to column."""
    ranks = expert_ids.shape[0]
    owner_PTK = expert_ids // (experts // ranks)
    return np.stack([(owner_PTK == peer).any(axis=2).sum(axis=1) for peer in range(ranks)], axis=1)
