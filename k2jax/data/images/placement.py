"""Images of a whole batch on devices: balanced by work, whatever rows of tokens they belong to.

The tower runs on all devices apart from the decoder (the decoupled encoder process, Kimi K2.5, section 4.5.1): a chunk
goes to the device with the least work that has room for it, the largest chunk first.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.config.schema import VisionConfig


class PatchRows(NamedTuple):
    """The static shape of a step's images.

    Attributes:
        token_rows: rows of tokens of a batch over all processes, rows of padding included.
        rows: rows of patches, at least as many, and a multiple of ``devices``; consecutive ones share a device.
        length: patches of a row.
        devices: over which they are balanced.
    """

    token_rows: int
    rows: int
    length: int
    devices: int


def chunk_load(patches: int, vision: VisionConfig) -> float:
    """FLOPs of the tower on a chunk: its matrix products grow with the patches, its attention with their square."""
    width = vision.width
    linear = 2 * vision.layers * (4 * width * width + 2 * width * vision.ffn)
    return linear * patches + 4 * vision.layers * width * patches * patches


def place_chunks(own: Sequence[Sequence[int]], shape: PatchRows, vision: VisionConfig) -> list[list[int]]:
    """Distributes chunks over rows of patches.

    Args:
        own: patches of the chunks of each row of tokens, together at most ``shape.length``.
        shape: rows, and how many of them share a device.
        vision: sizes that decide the work of a chunk.

    Returns:
        Numbers of the chunks, counted over all rows of tokens, of each of ``shape.rows`` rows. Where chunks are so
        large that the balanced order does not fit, each row of tokens keeps its chunks together.
    """
    sizes = [size for row in own for size in row]
    filled: list[list[int]] = [[] for _ in range(shape.rows)]
    free = np.full(shape.rows, shape.length)
    work = np.zeros(shape.devices)
    device_of = np.arange(shape.rows) // (shape.rows // shape.devices)
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fits = np.flatnonzero(free >= sizes[number])
        if not len(fits):
            return _by_row_of_tokens(own, shape)
        fits = fits[work[device_of[fits]] == work[device_of[fits]].min()]
        row = int(fits[free[fits].argmin()])
        filled[row].append(number)
        free[row] -= sizes[number]
        work[device_of[row]] += chunk_load(sizes[number], vision)
    return filled


def _by_row_of_tokens(own: Sequence[Sequence[int]], shape: PatchRows) -> list[list[int]]:
    ends = np.cumsum([0, *map(len, own)]).tolist()
    rows = [list(range(start, stop)) for start, stop in itertools.pairwise(ends)]
    return rows + [[] for _ in range(shape.rows - len(rows))]
