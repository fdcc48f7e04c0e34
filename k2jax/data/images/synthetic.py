"""Pictures with exact labels: words to read, shapes to describe, count and locate.

A sample is a function of seed and index.

Fonts are the DejaVu family that matplotlib carries, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import itertools
from pathlib import Path
from typing import Literal, NamedTuple, get_args
import zlib

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Kind = Literal["read", "describe", "count", "locate"]
Split = Literal["train", "held_out"]
KINDS = get_args(Kind)

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 70, 220), "orange": (250, 150, 20)}
SHAPES = ("circle", "square", "triangle")
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf")
SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
CELL, CELLS = 28, 4
"""Shapes lie in different cells of a grid, of at least 28 pixels a side, and of at most 4 x 4."""
STEPS = 4
"""Corners and sides of shapes are multiples of a cell's side divided by this, so that few coordinates occur. The last
step of a cell stays empty: no two shapes touch."""
GREY = 128
"""Of backgrounds, more or less: normalisation takes it to 0, so that what a patch holds is what is drawn there."""
MOST_WORDS = 2
"""Most words of a picture, one below the other."""
MOST_SHAPES, MOST_COUNTED, MOST_DESCRIBED = 9, 6, 4
"""Most shapes of a picture, of those that a question counts, and of a picture that is described."""
LEAST_SIDE, LEAST_LINE = 64, 28
"""Fewest pixels of a picture's sides, and of the height of a picture of words."""
HELD_OUT = 10
"""One word in so many is never in ``train``."""
COORDINATES = 1000
"""Boxes are in thousandths of the picture's sides."""


class VisualSample(NamedTuple):
    """A picture and a question about it.

    Attributes:
        image: in RGB.
        kind: what is asked.
        question: in English.
        answer: the exact answer: the words, a tally and the number (``011/122/222=2``: how many there are up to each
            cell, row by row), boxes ``[left,top,right,bottom]`` one after the other, or each shape's colour, name and
            box.
        boxes: int ``[shapes, 4]`` of the shapes that are asked for, left, top, right and bottom in thousandths of the
            sides, in the order of the answer: from left to right, then from above; all shapes that are described row of
            cells by row; empty where words are read.
    """

    image: Image.Image
    kind: Kind
    question: str
    answer: str
    boxes: np.ndarray


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


def synthetic_sample(
    seed: int, index: int, *, kind: Kind, split: Split = "train", size: tuple[int, int] = (112, 112)
) -> VisualSample:
    """Makes a sample.

    Samples of the two splits have different words and layouts.

    Args:
        seed: of the data set.
        index: number of the sample.
        kind: what is asked.
        split: ``train`` or ``held_out``.
        size: width and height [pixels], at least ``LEAST_SIDE`` each; the height of words ``LEAST_LINE``.
    """
    rng = np.random.default_rng([seed, index, zlib.crc32(f"{kind} {split}".encode())])
    return _MAKERS[kind](rng, split, size)


def random_word(rng: np.random.Generator, split: Split) -> str:
    """A word of two to four syllables that belongs to the split."""
    while True:
        word = "".join(rng.choice(SYLLABLES, size=rng.integers(2, 5)))
        if (zlib.crc32(word.encode()) % HELD_OUT == 0) == (split == "held_out"):
            return word


def _read(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    lines = min(MOST_WORDS, size[1] // CELL)
    words = [random_word(rng, split) for _ in range(rng.integers(1, lines + 1))]
    image = _blank(rng, size)
    draw = ImageDraw.Draw(image)
    height = size[1] // len(words)
    for line, word in enumerate(words):
        font = _fitting_font(str(rng.choice(FONTS)), word, (size[0] - 4, height - 4), rng)
        left, top, right, bottom = draw.textbbox((0, 0), word, font=font)
        x = rng.integers(0, size[0] - (right - left) + 1) - left
        y = line * height + rng.integers(0, height - (bottom - top) + 1) - top
        draw.text((int(x), int(y)), word, fill=(20, 20, 20), font=font)
    return VisualSample(image, "read", "What does it say?", " ".join(words), np.zeros((0, 4), int))


def _describe(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """A caption that says where things are: every feature is answered for, and no question has to be understood."""
    kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, min(MOST_DESCRIBED, most_shapes(size)) + 1))]
    image, shapes = draw_shapes(rng, size, kinds)
    across, down = cells_of(size)
    shapes.sort(key=lambda shape: (shape.box[1] // (size[1] // down), shape.box[0] // (size[0] // across)))
    boxes = _thousandths([shape.box for shape in shapes], size)
    named = zip((f"{shape.colour} {shape.shape}" for shape in shapes), boxes, strict=True)
    return VisualSample(image, "describe", "What is there?", "".join(name + _text(box) for name, box in named), boxes)


def _count(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """Every number up to ``MOST_COUNTED`` is the answer equally often, so that guesses are worth little.

    The answer counts aloud: a number alone says nothing about which of the shapes was taken for another.
    """
    wanted = kind_of_shape(rng)
    number = int(rng.integers(min(MOST_COUNTED, most_shapes(size)) + 1))
    others = rng.integers(not number, most_shapes(size) - number + 1)
    image, shapes = draw_shapes(rng, size, [wanted] * number + [kind_of_shape(rng, wanted) for _ in range(others)])
    answer = f"{_tally([shape.box for shape in shapes[:number]], size)}={number}"
    return VisualSample(image, "count", f"How many {wanted[1]} {wanted[0]}s?", answer, _boxes_of(shapes, *wanted, size))


def _locate(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, most_shapes(size) + 1))]
    image, shapes = draw_shapes(rng, size, kinds)
    chosen = shapes[rng.integers(len(shapes))]
    boxes = _boxes_of(shapes, chosen.shape, chosen.colour, size)
    answer = "".join(map(_text, boxes))
    return VisualSample(image, "locate", f"Where are {chosen.colour} {chosen.shape}s?", answer, boxes)


_MAKERS: dict[str, Callable[..., VisualSample]] = {
    "read": _read,
    "describe": _describe,
    "count": _count,
    "locate": _locate,
}


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
    image = _blank(rng, size)
    draw = ImageDraw.Draw(image)
    across, down = cells = cells_of(size)
    cell = np.array(size) // cells
    step = int(cell.min()) // STEPS
    shapes = []
    for (shape, colour), place in zip(kinds, rng.permutation(across * down)[: len(kinds)], strict=True):
        sides = int(rng.integers(STEPS // 2, STEPS))
        corner = cell * (place % across, place // across) + step * rng.integers(0, STEPS - sides, 2)
        left, top = map(int, corner)
        box = (left, top, left + sides * step - 1, top + sides * step - 1)
        _draw_shape(draw, shape, box, COLOURS[colour])
        shapes.append(DrawnShape(shape, colour, box))
    return image, shapes


def cells_of(size: tuple[int, int]) -> tuple[int, int]:
    """Columns and rows of the grid of a picture of this width and height."""
    across, down = (min(CELLS, side // CELL) for side in size)
    return across, down


def most_shapes(size: tuple[int, int]) -> int:
    """Most shapes of a picture of this width and height."""
    across, down = cells_of(size)
    return min(MOST_SHAPES, across * down)


def _draw_shape(draw: ImageDraw.ImageDraw, shape: str, box: tuple[int, int, int, int], fill: tuple) -> None:
    left, top, right, bottom = box
    if shape == "circle":
        draw.ellipse(box, fill=fill)
    elif shape == "square":
        draw.rectangle(box, fill=fill)
    else:
        draw.polygon([((left + right) // 2, top), (right, bottom), (left, bottom)], fill=fill)


def _boxes_of(shapes: list[DrawnShape], wanted: str, colour: str, size: tuple[int, int]) -> np.ndarray:
    return _thousandths(sorted(shape.box for shape in shapes if (shape.shape, shape.colour) == (wanted, colour)), size)


def _thousandths(boxes: list[tuple[int, int, int, int]], size: tuple[int, int]) -> np.ndarray:
    edges = np.array(boxes, int).reshape(-1, 4) + np.array([0, 0, 1, 1])  # the far edges of the last pixels
    return np.rint(edges * COORDINATES / np.tile(size, 2)).astype(int)


def _tally(boxes: list[tuple[int, int, int, int]], size: tuple[int, int]) -> str:
    """How many boxes lie in each cell and those before it, rows of cells apart."""
    across, down = cells_of(size)
    there = np.zeros((down, across), int)
    for left, top, _, _ in boxes:
        there[top // (size[1] // down), left // (size[0] // across)] += 1
    return "/".join("".join(map(str, row)) for row in there.cumsum().reshape(there.shape))


def _text(box: np.ndarray) -> str:
    return "[" + ",".join(map(str, box)) + "]"


def _blank(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """A background of grey, a little lighter, darker or tinted."""
    return Image.new("RGB", size, tuple(int(value) for value in rng.integers(GREY - 16, GREY + 17, 3)))


def _fitting_font(name: str, word: str, room: tuple[int, int], rng: np.random.Generator) -> ImageFont.FreeTypeFont:
    """The font at a size between three quarters of what fits and all of it."""
    left, _, right, _ = _font(name, room[1]).getbbox(word)
    points = min(room[1], room[1] * room[0] // (right - left) + 2)  # sizes beyond this are far too wide
    while points > 6:
        left, top, right, bottom = _font(name, points).getbbox(word)
        if right - left <= room[0] and bottom - top <= room[1]:
            break
        points -= 1
    return _font(name, int(rng.integers(max(6, points * 3 // 4), points + 1)))


@functools.cache
def _font(name: str, points: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_font_folder() / name), points)


@functools.cache
def _font_folder() -> Path:
    import matplotlib  # a second to import

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"
