"""Images of a whole batch on devices: balanced by work, whatever rows of tokens they belong to.

The tower runs on all devices apart from the decoder (the decoupled encoder process, Kimi K2.5, section 4.5.1): a chunk
goes to the device with the least work that has room for it, the largest chunk first. Where rows are too full for that,
the chunks of a row of tokens begin in a row of their own, and ``levelling`` exchanges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from k2jax.config.schema import VisionConfig
from k2jax.data.best_fit import best_fit
from k2jax.data.images.levelling import deal_rows, level
from k2jax.errors import UserError


class PatchRows(NamedTuple):
    """The static shape of a step's images.

    Attributes:
        token_rows: rows of tokens of a batch over all processes, rows of padding included.
        rows: rows of patches, a multiple of ``devices``; consecutive ones share a device. They hold as many rows of
            tokens with images as they have ``each`` rows for, however full.
        length: patches of a row.
        devices: over which they are balanced.
        each: most rows that ``best_fit`` fills with the chunks of a row of tokens.
    """

    token_rows: int
    rows: int
    length: int
    devices: int
    each: int = 1


def chunk_load(patches: int, vision: VisionConfig) -> float:
    """FLOPs of the tower on a chunk: its matrix products grow with the patches, its attention with their square."""
    width = vision.width
    linear = 2 * vision.layers * (4 * width * width + 2 * width * vision.ffn)
    return linear * patches + 4 * vision.layers * width * patches * patches


def place_chunks(own: Sequence[Sequence[int]], shape: PatchRows, vision: VisionConfig) -> list[list[int]]:
    """Distributes chunks over rows of patches.

    Args:
        own: patches of the chunks of each row of tokens, which ``best_fit`` has in at most ``shape.each`` rows.
        shape: rows, and how many of them share a device.
        vision: sizes that decide the work of a chunk.

    Returns:
        Numbers of the chunks, counted over all rows of tokens, of each of ``shape.rows`` rows.

    Raises:
        UserError: rows of tokens with images fill more rows of patches than there are.
    """
    sizes = np.array([size for row in own for size in row], np.int64)
    work = np.array([chunk_load(int(size), vision) for size in sizes])
    filled = _largest_first(sizes, work, shape)
    if filled is None:  # rows are too full for this order: begin from one that fits
        rows = _apart(own, shape.length)
        if len(rows) > shape.rows:
            raise UserError(
                f"the images of {sum(map(bool, own))} rows of tokens fill {len(rows)} rows of patches, and there are "
                f"{shape.rows}: raise config.data.images.rows"
            )
        filled = deal_rows(rows + [[] for _ in range(shape.rows - len(rows))], work, shape.devices)
    level(filled, sizes, work, shape.length, shape.devices)
    return filled


def _apart(own: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Rows of which each has chunks of one row of tokens alone."""
    starts = np.cumsum([0, *map(len, own)]).tolist()
    packed = ((start, row) for start, sizes in zip(starts, own, strict=False) for row in best_fit(sizes, length))
    return [[start + chunk for chunk in row] for start, row in packed]


def _largest_first(sizes: np.ndarray, work: np.ndarray, shape: PatchRows) -> list[list[int]] | None:
    """Gives each chunk, the largest first, to the device with the least work that has room; None where none has."""
    filled: list[list[int]] = [[] for _ in range(shape.rows)]
    free = np.full(shape.rows, shape.length)
    sums = np.zeros(shape.devices)
    device_of = np.arange(shape.rows) // (shape.rows // shape.devices)
    for number in np.argsort(-sizes, kind="stable").tolist():
        fits = np.flatnonzero(free >= sizes[number])
        if not len(fits):
            return None
        fits = fits[sums[device_of[fits]] == sums[device_of[fits]].min()]
        row = int(fits[free[fits].argmin()])
        filled[row].append(number)
        free[row] -= sizes[number]
        sums[device_of[row]] += work[number]
    return filled
