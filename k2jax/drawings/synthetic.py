"""Pictures with exact labels: words, shapes, charts, tables, code and buttons, and what is asked about them.

A sample is a function of seed and index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
import zlib

import numpy as np

from k2jax.drawings import charts, code, screens, shapes, text
from k2jax.drawings.canvas import LEAST_LINE, LEAST_SIDE, Split, VisualSample
from k2jax.errors import UserError


class PictureKind(NamedTuple):
    """What is asked about a picture.

    Attributes:
        draw: makes a sample from a generator, the split, and width and height [pixels].
        least: least width and height [pixels].
        permitted: augmentations that leave the answer true (``augment.OPERATIONS``).
    """

    draw: Callable[[np.random.Generator, Split, tuple[int, int]], VisualSample]
    least: tuple[int, int] = (LEAST_SIDE, LEAST_SIDE)
    permitted: tuple[str, ...] = ("light",)


# Where coordinates are a label, they move with the picture. Words, descriptions and tallies follow the order of
# reading, and a polygon the order of its corners, which flips and turns would change; code names exact colours.
PICTURE_KINDS: dict[str, PictureKind] = {
    "read": PictureKind(text.read, (LEAST_SIDE, LEAST_LINE)),
    "describe": PictureKind(shapes.describe),
    "count": PictureKind(shapes.count),
    "locate": PictureKind(shapes.locate, permitted=("flip", "turn", "shrink", "light")),
    "point": PictureKind(shapes.point, permitted=("flip", "turn", "shrink", "light")),
    "outline": PictureKind(shapes.outline, permitted=("shrink", "light")),
    "chart": PictureKind(charts.chart, charts.LEAST_CHART),
    "table": PictureKind(text.table, text.LEAST_TABLE),
    "code": PictureKind(code.code, permitted=()),
    "click": PictureKind(screens.click, screens.LEAST_SCREEN),
}
KINDS = tuple(PICTURE_KINDS)
BASIC_KINDS = ("read", "describe", "count", "locate")
"""The kinds that are drawn where none is named; results of trained models stand on them."""


def synthetic_sample(
    seed: int, index: int, *, kind: str, split: Split = "train", size: tuple[int, int] = (112, 112)
) -> VisualSample:
    """Makes a sample.

    Samples of the two splits have different words and layouts.

    Args:
        seed: of the data set.
        index: number of the sample.
        kind: what is asked, one of ``KINDS``.
        split: ``train`` or ``held_out``.
        size: width and height [pixels], at least ``least_size`` of the kind.

    Raises:
        UserError: the size is too small to show what is asked.
    """
    least = least_size([kind])
    if size[0] < least[0] or size[1] < least[1]:
        raise UserError(
            f"pictures of {size[0]} x {size[1]} pixels are too small for {kind}: draw at least {least[0]} x {least[1]}"
        )
    rng = np.random.default_rng([seed, index, zlib.crc32(f"{kind} {split}".encode())])
    return PICTURE_KINDS[kind].draw(rng, split, size)


def least_size(kinds: Iterable[str]) -> tuple[int, int]:
    """Least width and height of a picture in which each of these kinds can be drawn [pixels]."""
    widths, heights = zip(*(PICTURE_KINDS[kind].least for kind in kinds), strict=True)
    return max(widths), max(heights)
