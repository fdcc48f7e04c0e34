"""What pictures with exact labels are made of: samples, words, fonts, and shapes on a grid.

Fonts are the DejaVu family that matplotlib carries, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import itertools
from pathlib import Path
from typing import Any, Literal, NamedTuple
import zlib

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Split = Literal["train", "held_out"]

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 70, 220), "orange": (250, 150, 20)}
SHAPES = ("circle", "square", "triangle")
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf")
SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
LEAST_SIDE, LEAST_LINE = 64, 28
"""Fewest pixels of the sides of a picture of shapes, and of the height of a picture of words."""
CELL, CELLS = 28, 4
"""Shapes lie in different cells of a grid, of at least 28 pixels a side, and of at most 4 x 4."""
STEPS = 4
"""Corners and sides of shapes are multiples of a cell's side divided by this, so that few coordinates occur. The last
step of a cell stays empty: no two shapes touch."""
GREY = 128
"""Grey of backgrounds, more or less: normalisation takes it to 0, so that what a patch holds is what is drawn there."""
INK = (20, 20, 20)
"""Colour of text."""
MAX_SHAPES = 9
"""Most shapes of a picture."""
LEAST_POINTS = 9
"""Em of the smallest text of charts, tables and buttons [pixels]: its small letters are five pixels high."""
HELD_OUT = 10
"""One word in this number is never in ``train``."""
COORDINATES = 1000
"""Boxes, points and polygons are in thousandths of the picture's sides."""


class VisualSample(NamedTuple):
    """A picture and a question about it.

    Attributes:
        image: in RGB.
        kind: what is asked, one of ``synthetic.KINDS``.
        question: in English.
        answer: the exact answer, see the kind.
        boxes: int ``[n, 4]``, left, top, right and bottom in thousandths of the sides: of the button to click, or of
            the shapes that are asked for, in the order of the answer (from left to right, then from above; those that
            are described or written as code row of cells by row); empty where words, charts and tables are read.
        label: the answer as a part of a message that moves with the picture (``labels.is_label``); None where it is
            text.
    """

    image: Image.Image
    kind: str
    question: str
    answer: str
    boxes: np.ndarray
    label: Mapping[str, Any] | None = None


class DrawnShape(NamedTuple):
    """One shape of a picture.

    Attributes:
        shape: its name.
        colour: name of its colour.
        box: left, top, right and bottom, in pixels; the pixels ``right`` and ``bottom`` belong to it.
    """

    shape: str
    colour: str
    box: tuple[int, int, int, int]


def random_word(rng: np.random.Generator, split: Split, max_syllables: int = 4) -> str:
    """A word of two to ``max_syllables`` syllables that belongs to the split."""
    while True:
        word = "".join(rng.choice(SYLLABLES, size=rng.integers(2, max_syllables + 1)))
        if (zlib.crc32(word.encode()) % HELD_OUT == 0) == (split == "held_out"):
            return word


def kind_of_shape(rng: np.random.Generator, but: tuple[str, str] | None = None) -> tuple[str, str]:
    """A shape and a colour, by chance, but not those of ``but``."""
    kinds = [kind for kind in itertools.product(SHAPES, COLOURS) if kind != but]
    return kinds[rng.integers(len(kinds))]


def draw_shapes(
    rng: np.random.Generator, size: tuple[int, int], kinds: Sequence[tuple[str, str]]
) -> tuple[Image.Image, list[DrawnShape]]:
    """Draws shapes that do not touch.

    Args:
        rng: decides places and sizes.
        size: width and height [pixels].
        kinds: name and colour of each shape, at most one for each cell.

    Returns:
        The picture and what it shows.
    """
    image = blank(rng, size)
    draw = ImageDraw.Draw(image)
    shapes = place_shapes(rng, size, kinds)
    for shape in shapes:
        _draw_shape(draw, shape.shape, shape.box, COLOURS[shape.colour])
    return image, shapes


def place_shapes(rng: np.random.Generator, size: tuple[int, int], kinds: Sequence[tuple[str, str]]) -> list[DrawnShape]:
    """Places and sizes of shapes, each in a cell of its own, as ``draw_shapes`` takes them."""
    across, down = cells = cells_of(size)
    cell = np.array(size) // cells
    step = int(cell.min()) // STEPS
    shapes = []
    for (shape, colour), place in zip(kinds, rng.permutation(across * down)[: len(kinds)], strict=True):
        sides = int(rng.integers(STEPS // 2, STEPS))
        corner = cell * (place % across, place // across) + step * rng.integers(0, STEPS - sides, 2)
        left, top = map(int, corner)
        shapes.append(DrawnShape(shape, colour, (left, top, left + sides * step - 1, top + sides * step - 1)))
    return shapes


def by_rows(shapes: Sequence[DrawnShape], size: tuple[int, int]) -> list[DrawnShape]:
    """Shapes of a picture of this size, row of cells by row."""
    across, down = cells_of(size)
    return sorted(shapes, key=lambda shape: (shape.box[1] // (size[1] // down), shape.box[0] // (size[0] // across)))


def cells_of(size: tuple[int, int]) -> tuple[int, int]:
    """Columns and rows of the grid of a picture of this width and height."""
    across, down = (min(CELLS, side // CELL) for side in size)
    return across, down


def max_shapes(size: tuple[int, int]) -> int:
    """Most shapes of a picture of this width and height."""
    across, down = cells_of(size)
    return min(MAX_SHAPES, across * down)


def _draw_shape(draw: ImageDraw.ImageDraw, shape: str, box: tuple[int, int, int, int], fill: tuple) -> None:
    left, top, right, bottom = box
    if shape == "circle":
        draw.ellipse(box, fill=fill)
    elif shape == "square":
        draw.rectangle(box, fill=fill)
    else:
        draw.polygon([((left + right) // 2, top), (right, bottom), (left, bottom)], fill=fill)


def thousandths(boxes: Sequence[tuple[int, int, int, int]], size: tuple[int, int]) -> np.ndarray:
    """Boxes of pixels, whose last ones belong to them, as int ``[n, 4]`` in thousandths of the sides."""
    edges = np.array(boxes, int).reshape(-1, 4) + np.array([0, 0, 1, 1])  # the far edges of the last pixels
    return np.rint(edges * COORDINATES / np.tile(size, 2)).astype(int)


def in_brackets(numbers: np.ndarray) -> str:
    """Numbers of one shape as an answer has them."""
    return "[" + ",".join(map(str, numbers)) + "]"


def blank(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """A background of grey, a little lighter, darker or tinted."""
    return Image.new("RGB", size, tuple(int(value) for value in rng.integers(GREY - 16, GREY + 17, 3)))


def fitting_font(name: str, word: str, room: tuple[int, int], rng: np.random.Generator) -> ImageFont.FreeTypeFont:
    """The font at a size between three quarters of what fits and all of it."""
    left, _, right, _ = font_of(name, room[1]).getbbox(word)
    points = min(room[1], room[1] * room[0] // (right - left) + 2)  # sizes beyond this are far too wide
    while points > 6:
        left, top, right, bottom = font_of(name, points).getbbox(word)
        if right - left <= room[0] and bottom - top <= room[1]:
            break
        points -= 1
    return font_of(name, int(rng.integers(max(6, points * 3 // 4), points + 1)))


def common_font(name: str, words: Sequence[str], room: tuple[int, int], max_points: int) -> ImageFont.FreeTypeFont:
    """The font at the largest size, up to ``max_points``, at which each of the words fits; at least ``LEAST_POINTS``.

    Args:
        name: of ``FONTS``.
        words: each by itself.
        room: width and height [pixels].
        max_points: of the em [pixels].
    """
    for points in range(max_points, LEAST_POINTS, -1):
        font = font_of(name, points)
        boxes = [font.getbbox(word) for word in words]
        if sum(font.getmetrics()) <= room[1] and all(right - left <= room[0] for left, _, right, _ in boxes):
            return font
    return font_of(name, LEAST_POINTS)


def draw_centred(
    draw: ImageDraw.ImageDraw, text: str, box: tuple[int, int, int, int], font: ImageFont.FreeTypeFont
) -> None:
    """Draws a text in ``INK`` in the middle of a box of pixels; texts of one line have one baseline."""
    left, _, right, _ = draw.textbbox((0, 0), text, font=font)
    x = box[0] + (box[2] - box[0] + 1 - (right - left)) // 2 - left
    y = box[1] + (box[3] - box[1] + 1 - sum(font.getmetrics())) // 2
    draw.text((x, y), text, fill=INK, font=font)


@functools.cache
def font_of(name: str, points: int) -> ImageFont.FreeTypeFont:
    """One of ``FONTS`` at a size [pixels of the em]."""
    return ImageFont.truetype(str(font_folder() / name), points)


@functools.cache
def font_folder() -> Path:
    """Where the fonts are."""
    import matplotlib  # a second to import

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"
