"""Which blocks of every source a phase reads: those that follow the blocks of the phases before it.

The blocks of a source have a seeded order in every pass over it. A phase begins where the one before ended in that
order, so that nothing is seen again while there is something of the source that was not seen as often, and a limit of
passes is one of the whole run. How many blocks a phase needs follows from the mixture and its steps alone.

Rows are shuffled within windows of blocks, which follow each other from where the phase begins: one that is made longer
or shorter while it is under way has another order of rows in one window alone.
"""

from __future__ import annotations

from collections.abc import Mapping
import math

import numpy as np

from k2jax.config.schema import IMAGE_SOURCES, DataConfig
from k2jax.data.packing import shuffle_seed
from k2jax.data.phases.block_rows import PhaseRows, block_starts
from k2jax.data.shards import TokenStream
from k2jax.errors import UserError
from k2jax.mixture_plan import MixturePlan

WINDOWS = 16
"""Of a pass."""


class SourceOrder:
    """The order in which the blocks of a source are read, pass after pass, and how far a run has come in it."""

    def __init__(self, stream: TokenStream, seed: int):
        self._stream, self._seed = stream, seed
        self._sizes = np.diff(block_starts(stream.tokens))
        self._read = 0  # blocks, over all passes

    def left(self, max_epochs: float) -> int | None:
        """Blocks until so many passes are read; None for no limit."""
        return max(0, math.floor(max_epochs * len(self._sizes)) - self._read) if max_epochs else None

    def needed(self, rows: int, length: int) -> int:
        """Blocks, at least one, that the next ``rows`` rows take."""
        tokens, blocks = rows * (length - 1) + 1, 0
        while True:
            number, first = divmod(self._read + blocks, len(self._sizes))
            ends = np.cumsum(self._sizes[self._pass(number)[first:]])
            if tokens <= ends[-1]:
                return blocks + int(np.searchsorted(ends, tokens)) + 1
            tokens, blocks = tokens - int(ends[-1]), blocks + len(ends)

    def rows(self, blocks: int, length: int) -> PhaseRows:
        """Rows of the next blocks."""
        windows, begin, end = [], self._read, self._read + blocks
        size = max(1, len(self._sizes) // WINDOWS)
        while begin < end:
            number, first = divmod(begin, len(self._sizes))
            windows.append(self._pass(number)[first : first + min(size, end - begin)])
            begin += len(windows[-1])
        return PhaseRows(self._stream, length, windows)

    def advance(self, blocks: int) -> None:
        """Counts the next blocks as read."""
        self._read += blocks

    def _pass(self, number: int) -> np.ndarray:
        return np.random.default_rng((self._seed, number)).permutation(len(self._sizes))


def source_orders(streams: Mapping[str, TokenStream], seed: int) -> dict[str, SourceOrder]:
    """The orders of all sources of text of a run, nothing of which is read yet."""
    return {name: SourceOrder(stream, shuffle_seed(seed, name)) for name, stream in streams.items()}


def next_rows(orders: Mapping[str, SourceOrder], config: DataConfig, rows: int) -> dict[str, PhaseRows]:
    """The rows of text of the next phase, whose blocks then count as read; sources that are used up have none.

    Args:
        orders: of all sources of text of the run.
        config: of the phase.
        rows: of the phase, over all its steps.

    Raises:
        UserError: all sources of the phase are used up.
    """
    names = [name for name in sorted(config.sources) if name in orders]
    length = config.sequence_length
    left = {name: orders[name].left(config.sources[name].max_epochs) for name in names}
    if names and not any(blocks is None or blocks for blocks in left.values()):
        raise UserError(
            "the phases before have used up every source: raise config.data.sources.NAME.max_epochs, or set one to 0"
        )
    whole = {name: orders[name].rows(blocks, length) for name, blocks in left.items() if blocks}
    limits = [None if left[name] is None else len(whole[name]) if left[name] else 0 for name in names]
    drawn = _drawn(names, config, rows, limits)
    parts = {}
    for name in names:
        if left[name] == 0:
            continue
        blocks = orders[name].needed(drawn[name], length)
        blocks = blocks if left[name] is None else min(blocks, left[name])
        parts[name] = orders[name].rows(blocks, length)
        orders[name].advance(blocks)
    return parts


def _drawn(names: list[str], config: DataConfig, rows: int, limits: list[int | None]) -> dict[str, int]:
    """Rows of every source of text in a phase of ``rows`` rows."""
    weights = [config.sources[name].weight for name in names]
    if any(source.kind in IMAGE_SOURCES for source in config.sources.values()):
        # Text fills rows with images too: at most it has all tokens that the share of images leaves.
        share = sum(config.images.share)
        return {
            name: math.ceil(rows * (1 - share) * weight / sum(weights))
            for name, weight in zip(names, weights, strict=True)
        }
    plan = MixturePlan(weights, limits)
    return dict(zip(names, plan.drawn(min(rows, len(plan))), strict=True))
