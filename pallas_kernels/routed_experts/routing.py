"""The routing of the TPU kernels: copies sorted by expert, and for each tile of tokens where its copies' rows are."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.tiling import Visits, plan_visits
from pallas_kernels.routed_experts.plan import sort_copies, take

# v5p runs the two halves of a parallel grid dimension on its two TensorCores; elsewhere they run one after the other.
CORES = 2


class Routing(NamedTuple):
    """R sorted rows, one for each copy with an expert, in I tiles; tokens in J tiles of P tokens and P * K places."""

    visits: Visits  # of each of C cores, int32 [C, V]
    end_C: jax.Array  # int32, one past the last row in use of a core
    sizes_E: jax.Array  # int32, rows of each expert
    token_IR: jax.Array  # int32, the tokens of a tile's rows, [I, 1, rows of a tile]; any where a row is not in use
    gate_R1: jax.Array  # float32, its gate; all NaN where copies did not fit
    place_TK: jax.Array  # int32, the row of a copy; R where it has none
    rows_T1: jax.Array  # int32, how many rows a token has
    source_JP: jax.Array  # int32, the rows of a tile's tokens, [J, 1, P * K]; the first count_J are in use
    target_JP: jax.Array  # int32, where they go: (number among the token's rows) * P + token in tile
    count_J: jax.Array  # int32, rows of a tile's tokens
    deepest_J: jax.Array  # int32, the largest rows_T1 of a tile
    excess_1: jax.Array  # int32, copies that did not fit


class TooManyCopiesError(ValueError):
    """More copies of tokens than 32-bit sort keys can tell apart."""


def make_routing(ids_TK, gates_TK, experts: int, max_copies: int, row_tile: int, token_tile: int) -> Routing:
    """Plan the routing of `ids_TK` (int32 in [0, experts]) for at most `max_copies` copies with an expert."""
    (tokens, active), copies = ids_TK.shape, ids_TK.size
    rows = pl.cdiv(max_copies, row_tile) * row_tile
    if rows * token_tile * active > jnp.iinfo(jnp.int32).max:
        raise TooManyCopiesError(
            f"{max_copies:,} copies of tokens are too many at a time: bound those that have an expert (max_copies), or "
            "exchange the tokens in chunks"
        )
    expert_N, copy_N = sort_copies(ids_TK.reshape(-1), experts)
    edge = jnp.searchsorted(expert_N, jnp.arange(experts + 1, dtype=jnp.int32)).astype(jnp.int32)
    excess = jnp.maximum(edge[-1:] - max_copies, 0)
    edge = jnp.minimum(edge, max_copies)
    sizes_E = edge[1:] - edge[:-1]

    row_R = jnp.arange(rows, dtype=jnp.int32)
    copy_R = jnp.where(row_R < edge[-1], take(copy_N, row_R, fill=copies), copies)
    gate_R = jnp.where(excess > 0, jnp.nan, take(gates_TK.reshape(-1), copy_R))
    visits, end_C = _by_core(plan_visits(sizes_E, rows, row_tile, empty_groups=False), edge[-1], rows, row_tile)
    # A second sort inverts the permutation; a scatter of scalars would be serial on a TPU.
    place_N = lax.sort((copy_N, jnp.arange(copies, dtype=jnp.int32)), num_keys=1)[1]
    place_TK = jnp.where(place_N < edge[-1], place_N, rows).reshape(tokens, active)
    return Routing(
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
    """Give each core a run of tiles in use; the surplus visits of a core repeat its last tile, without rows."""
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
    # A core without rows still writes one tile; it must not be one that another core computes.
    tile_CV = jnp.where(before_C1 < through_C1, tile_CV, jnp.minimum(first_C1, tiles - 1))
    real_CV = before_C1 + step_1V < through_C1
    start_CV, end_CV = jnp.where(real_CV, start_CV, 0), jnp.where(real_CV, end_CV, 0)
    return Visits(group_CV, tile_CV, start_CV, end_CV), jnp.minimum(next_C1[:, 0] * row_tile, total)


def _by_token(place_TK, rows: int, token_tile: int):
    """For each tile of tokens list the rows in use: a tile fetches only those, however many choices have no expert."""
    tokens, active = place_TK.shape
    missing = -tokens % (token_tile * CORES)
    place_TK = jnp.pad(place_TK, ((0, missing), (0, 0)), constant_values=rows)
    used_TK = place_TK < rows
    number_TK = jnp.cumsum(used_TK, axis=1, dtype=jnp.int32) - used_TK
    rows_T1 = jnp.sum(used_TK, axis=1, dtype=jnp.int32, keepdims=True)
    token_T1 = jnp.arange(tokens + missing, dtype=jnp.int32)[:, None] % token_tile
    places = token_tile * active
    # One key holds a row and where it goes, so that one sort brings what is in use to the front of each tile's list.
    key_TK = place_TK * places + number_TK * token_tile + token_T1
    key_JP = lax.sort(jnp.where(used_TK, key_TK, jnp.iinfo(jnp.int32).max).reshape(-1, places))
    return dict(
        rows_T1=rows_T1,
        source_JP=(key_JP // places)[:, None],
        target_JP=(key_JP % places)[:, None],
        count_J=jnp.sum(used_TK.reshape(-1, places), axis=1, dtype=jnp.int32),
        deepest_J=jnp.max(rows_T1.reshape(-1, token_tile), axis=1),
    )
