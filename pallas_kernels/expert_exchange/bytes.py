"""Bytes that an exchange sends between ranks, counted from a routing with NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pallas_kernels.expert_exchange.plan import row_groups


class ExchangeBytes(NamedTuple):
    """Bytes that each rank sends to other ranks in one forward pass, int64 ``[P]`` each.

    The backward pass sends ``returned`` for the dispatch and ``sent`` for the combine again (in ``dense`` the float32
    sums are those of the dispatch), and for the gates' cotangents half of ``choices`` without the counts.

    Attributes:
        sent: rows of tokens.
        returned: rows of experts' results.
        choices: ids, gates, starts and counts.
    """

    sent: np.ndarray
    returned: np.ndarray
    choices: np.ndarray


def exchanged_bytes(
    expert_ids: np.ndarray,
    *,
    experts: int,
    width: int,
    itemsize: int,
    backend: str,
    slots: int | None = None,
) -> ExchangeBytes:
    """Counts the bytes that each rank sends to other ranks; a hop over several links counts once.

    Args:
        expert_ids: int ``[P, T, K]`` in [0, E], the routing of all ranks' tokens.
        experts: E.
        width: D.
        itemsize: size of one element of a row [bytes].
        backend: ``dense``, ``a2a``, ``ragged`` or ``dma``.
        slots: as in ``expert_dispatch``.

    Raises:
        ValueError: if the backend is unknown.
    """
    ranks, tokens, active = expert_ids.shape
    slots = row_groups(tokens if slots is None else slots)
    size = width * itemsize
    if backend == "dense":
        rows_P = np.full(ranks, (ranks - 1) * tokens, np.int64)
        return ExchangeBytes(rows_P * size, rows_P * width * max(4, itemsize), rows_P * 8 * active)
    padded_P = np.full(ranks, (ranks - 1) * slots, np.int64)
    choices_P = padded_P * 8 * active
    if backend == "a2a":
        return ExchangeBytes(padded_P * size, padded_P * size, choices_P)
    if backend not in ("ragged", "dma"):
        raise ValueError(f"unknown backend {backend!r}")
    rows_PP = np.minimum(row_counts(expert_ids, experts), slots)
    if backend == "dma":
        rows_PP = row_groups(rows_PP)
    np.fill_diagonal(rows_PP, 0)
    return ExchangeBytes(rows_PP.sum(1) * size, rows_PP.sum(0) * size, choices_P + (ranks - 1) * 8)


def row_counts(expert_ids: np.ndarray, experts: int) -> np.ndarray:
    """Counts the tokens of each rank that have at least one expert on each rank.

    Args:
        expert_ids: int ``[P, T, K]`` in [0, E].
        experts: E.

    Returns:
        int64 ``[P, P]``, from the rank of the row to the rank of the column.
    """
    ranks = expert_ids.shape[0]
    owner_PTK = expert_ids // (experts // ranks)
    return np.stack([(owner_PTK == peer).any(axis=2).sum(axis=1) for peer in range(ranks)], axis=1)
