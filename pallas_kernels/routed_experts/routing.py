"""Routing plan of the TPU kernels: copies sorted by expert, and the rows of each tile of tokens."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.tiling import Visits, plan_visits
from pallas_kernels.ops import take
from pallas_kernels.routed_experts.plan import first_positions, sort_copies

# v5p runs the two halves of a parallel grid dimension on its two TensorCores; other chips run them one after the other.
CORES = 2


class KernelRouting(NamedTuple):
    """Plan of R sorted rows, one for each copy with an expert.

    Rows form I tiles. Tokens form J tiles of P tokens, with P * K places each.

    Attributes:
        visits: visits of each of C cores, int32 ``[C, V]``.
        end_C: int32, one past the last row in use of each core.
        sizes_E: int32, number of rows of each expert.
        token_IR: int32 ``[I, 1, rows of a tile]``, token of each row; arbitrary for unused rows.
        gate_R1: float32, gate of each row; NaN everywhere if copies did not fit.
        place_TK: int32, row of each copy; R for a copy without an expert.
        rows_T1: int32, number of rows of each token.
        source_JP: int32 ``[J, 1, P * K]``, rows of each tile's tokens; the first count_J are in use.
        target_JP: int32, destinations of these rows: (number among the token's rows) * P + token in tile.
        count_J: int32, number of rows of each tile's tokens.
        deepest_J: int32, largest rows_T1 of each tile.
        excess_1: int32, number of copies that did not fit.
    """

    visits: Visits
    end_C: jax.Array
    sizes_E: jax.Array
    token_IR: jax.Array
    gate_R1: jax.Array
    place_TK: jax.Array
    rows_T1: jax.Array
    source_JP: jax.Array
    target_JP: jax.Array
    count_J: jax.Array
    deepest_J: jax.Array
    excess_1: jax.Array


class TooManyCopiesError(ValueError):
    """There are more copies of tokens than 32-bit sort keys can distinguish."""


def plan_routing(ids_TK, gates_TK, experts: int, max_copies: int, row_tile: int, token_tile: int) -> KernelRouting:
    """Plans the sorted rows and their visits.

    Args:
        ids_TK: int32 in [0, experts]; ``experts`` means no expert.
        gates_TK: float32.
        experts: E.
        max_copies: most copies with an expert.
        row_tile: rows of a tile.
        token_tile: tokens of a tile.

    Raises:
        TooManyCopiesError: if 32-bit sort keys cannot distinguish the rows.
    """
    (tokens, active), copies = ids_TK.shape, ids_TK.size
    rows = pl.cdiv(max_copies, row_tile) * row_tile
    if rows * token_tile * active > jnp.iinfo(jnp.int32).max:
        raise TooManyCopiesError(
            f"{max_copies:,} copies of tokens are too many at a time: lower max_copies, the bound of copies with an "
            "expert, or exchange the tokens in chunks"
        )
    expert_N, copy_N = sort_copies(ids_TK.reshape(-1), experts)
    edge = first_positions(expert_N, experts)
    excess = jnp.maximum(edge[-1:] - max_copies, 0)
    edge = jnp.minimum(edge, max_copies)
    sizes_E = edge[1:] - edge[:-1]

    row_R = jnp.arange(rows, dtype=jnp.int32)
    copy_R = jnp.where(row_R < edge[-1], take(copy_N, row_R, fill=copies), copies)
    gate_R = jnp.where(excess > 0, jnp.nan, take(gates_TK.reshape(-1), copy_R))
    visits, end_C = _by_core(plan_visits(sizes_E, rows, row_tile, empty_groups=False), edge[-1], rows, row_tile)
    # A second sort inverts the permutation; a TPU would run a scatter of scalars serially.
    place_N = lax.sort((copy_N, jnp.arange(copies, dtype=jnp.int32)), num_keys=1)[1]
    place_TK = jnp.where(place_N < edge[-1], place_N, rows).reshape(tokens, active)
    return KernelRouting(
        visits=visits,
        end_C=end_C,
        sizes_E=sizes_E,
        token_IR=jnp.minimum(copy_R // active, tokens - 1).reshape(-1, 1, row_tile),
        gate_R1=gate_R[:, None],
        place_TK=place_TK,
        excess_1=excess,
        **_by_token(place_TK, rows, token_tile),
    )


def _by_core(visits: Visits, total, rows: int, row_tile: int) -> tuple[Visits, jax.Array]:
    """Divides the tiles in use among the cores; surplus visits of a core repeat its last tile, without rows."""
    tiles = rows // row_tile
    cores = min(CORES, tiles)
    used = (total + row_tile - 1) // row_tile
    first_C1 = (jnp.arange(cores, dtype=jnp.int32)[:, None] * used + cores - 1) // cores
    next_C1 = jnp.append(first_C1[1:], used[None, None], axis=0)
    groups = visits.tile_V.size - tiles + 1
    step_1V = jnp.arange(-(-tiles // cores) + groups - 1, dtype=jnp.int32)[None]
    active_V = visits.start_V < visits.end_V
    before_C1, through_C1 = (
        jnp.sum(active_V & (visits.tile_V < tile_C1), axis=1, keepdims=True, dtype=jnp.int32)
        for tile_C1 in (first_C1, next_C1)
    )
    index_CV = jnp.minimum(before_C1 + step_1V, jnp.maximum(through_C1 - 1, 0))
    group_CV, tile_CV, start_CV, end_CV = (field[index_CV] for field in visits)
    # A core without rows still writes one tile, which must not be a tile that another core computes.
    tile_CV = jnp.where(before_C1 < through_C1, tile_CV, jnp.minimum(first_C1, tiles - 1))
    real_CV = before_C1 + step_1V < through_C1
    start_CV, end_CV = jnp.where(real_CV, start_CV, 0), jnp.where(real_CV, end_CV, 0)
    return Visits(group_CV, tile_CV, start_CV, end_CV), jnp.minimum(next_C1[:, 0] * row_tile, total)


def _by_token(place_TK, rows: int, token_tile: int):
    """Lists the rows in use of each tile of tokens, so that the kernel fetches no others."""
    tokens, active = place_TK.shape
    missing = -tokens % (token_tile * CORES)
    place_TK = jnp.pad(place_TK, ((0, missing), (0, 0)), constant_values=rows)
    used_TK = place_TK < rows
    number_TK = jnp.cumsum(used_TK, axis=1, dtype=jnp.int32) - used_TK
    rows_T1 = jnp.sum(used_TK, axis=1, dtype=jnp.int32, keepdims=True)
    token_T1 = jnp.arange(tokens + missing, dtype=jnp.int32)[:, None] % token_tile
    places = token_tile * active
    # A key holds a row and its destination, so that one sort moves the rows in use to the front of each tile's list.
    key_TK = place_TK * places + number_TK * token_tile + token_T1
    key_JP = lax.sort(jnp.where(used_TK, key_TK, jnp.iinfo(jnp.int32).max).reshape(-1, places))
    return dict(
        rows_T1=rows_T1,
        source_JP=(key_JP // places)[:, None],
        target_JP=(key_JP % places)[:, None],
        count_J=jnp.sum(used_TK.reshape(-1, places), axis=1, dtype=jnp.int32),
        deepest_J=jnp.max(rows_T1.reshape(-1, token_tile), axis=1),
    )
