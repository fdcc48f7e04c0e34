"""Rows of tokens on a device with experts: how many travel, are held, and are computed beyond those that are needed.

Tokens choose experts uniformly. A device exchanges its tokens with the P devices of the axis ``expert`` in
``parallel.expert_chunks`` parts. Buffers are sized for the worst case that the config allows, so bytes follow from
``expert_slots`` and ``expert_copies``, and FLOPs from the mean.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp

from k2jax.config.schema import Config, ModelConfig
from k2jax.errors import UserError
from k2jax.model.remat import ExpertRows
from pallas_kernels.expert_exchange.plan import row_groups
from pallas_kernels.grouped_matmul.tiling import row_tile
from pallas_kernels.implementation import target_platform
from pallas_kernels.routed_experts import TooManyCopiesError, kept_rows

BFLOAT16 = 2
SUB_BLOCK = 128  # rows that the kernels of grouped products multiply at a time
TILE = 512  # their largest row tile in bfloat16


class ExpertBuffers(NamedTuple):
    """Buffers of the routed experts of a layer for one micro-batch on one device.

    Attributes:
        rows: of all parts of the exchange together.
        part: of one part.
    """

    rows: ExpertRows
    part: ExpertRows


def expert_buffers(config: Config, tokens: int, ranks: int) -> ExpertBuffers:
    """The buffers of a micro-batch of ``tokens`` on one device, with experts spread over ``ranks``.

    Raises:
        UserError: more copies of tokens may arrive at a time than the experts' kernels sort.
    """
    parallel = config.parallel
    if ranks == 1:
        rows = ExpertRows(tokens, *_kept_rows(config.model, tokens, 1, None))
        return ExpertBuffers(rows, rows)
    parts = exchange_parts(config, ranks)
    part_tokens = -(-tokens // parts)
    slots = math.ceil(parallel.expert_slots * part_tokens)
    received = ranks * (part_tokens if parallel.expert_backend == "dense" else row_groups(slots))
    bound = int(parallel.expert_copies * part_tokens * config.model.moe.active_experts)
    part = ExpertRows(received, *_kept_rows(config.model, received, ranks, bound))
    return ExpertBuffers(ExpertRows(*(parts * number for number in part)), part)


@functools.lru_cache(maxsize=1024)
def _kept_rows(model: ModelConfig, tokens: int, ranks: int, bound: int | None) -> tuple[int, int]:
    shape = (model.moe.experts // ranks, model.moe.expert_ffn, model.d_model)
    try:
        with target_platform("tpu"):
            return kept_rows(
                tokens,
                model.moe.active_experts,
                shape,
                jnp.dtype(jnp.bfloat16),
                impl=model.kernels,
                capacity_factor=model.moe.capacity_factor,
                max_copies=bound,
            )
    except TooManyCopiesError as error:
        raise UserError(f"of {tokens:,} tokens that a device receives, {error}") from error


def room_for_copies(config: Config, ranks: int) -> float:
    """Room for copies of tokens on one of the ranks over their mean; never more than all that the ranks have."""
    return min(config.parallel.expert_copies, ranks) if ranks > 1 else 1.0


def mean_owners(model: ModelConfig, ranks: int) -> float:
    """Ranks that own at least one of a token's experts, on average over uniform choices."""
    others = math.comb(model.moe.experts - model.moe.experts // ranks, model.moe.active_experts)
    return ranks * (1 - others / math.comb(model.moe.experts, model.moe.active_experts))


def exchange_parts(config: Config, ranks: int) -> int:
    """Parts in which a micro-batch's tokens are exchanged and computed."""
    return config.parallel.expert_chunks if ranks > 1 else 1


class GroupedProduct(NamedTuple):
    """How the kernels of grouped products compute the rows of one expert, on average.

    Attributes:
        rows: rows of an expert.
        visits: row tiles that hold rows of it; each reads the expert's weights once.
        computed: rows that are multiplied, those of partly filled sub-blocks included.
    """

    rows: float
    visits: float
    computed: float


def grouped_product(rows: float, experts: int, max_rows: int) -> GroupedProduct:
    """Tiles and sub-blocks of experts with equally many rows, which lie one after the other without padding.

    The edge between two experts is equally likely at each row of a tile. An expert with n rows then meets
    ``(n - 1) / t + 1`` tiles of t rows, and of sub-blocks of 128 rows as many by the same formula: the price of an edge
    is one sub-block that is computed for both.

    Args:
        rows: rows of one expert, the mean.
        experts: experts of the device.
        max_rows: rows of all experts that the buffers have room for; the kernels choose their tile by them.
    """
    tile = row_tile(max_rows, experts, TILE)
    met = lambda size: (rows - 1) / size + 1 if rows >= 1 else rows  # noqa: E731
    return GroupedProduct(rows, met(tile), SUB_BLOCK * met(SUB_BLOCK))


def expert_tiles(config: Config, tokens: float, ranks: int) -> GroupedProduct:
    """Tiles of one expert in one part of the exchange of a micro-batch of ``tokens`` on one device."""
    model = config.model
    part = tokens / exchange_parts(config, ranks)
    rows = part * model.moe.active_experts * ranks / model.moe.experts
    room = int(room_for_copies(config, ranks) * part * model.moe.active_experts)
    return grouped_product(rows, max(1, model.moe.experts // ranks), room)


def backward_bytes(config: Config, tokens: int, ranks: int) -> float:
    """HBM that the backward pass of a layer's routed experts takes beside activations, for one part of the exchange.

    Sorted copies of the inputs, of the outputs' gradients and of the inputs' gradients; gradients of SwiGLU's input and
    its output; and the rows that were received and are sent back.
    """
    model, part = config.model, expert_buffers(config, tokens, ranks).part
    received = 2 * part.tokens * model.d_model if ranks > 1 else 0
    return BFLOAT16 * (3.0 * part.copies * (model.d_model + model.moe.expert_ffn) + received)
