"""Pictures with exact labels of shapes: to describe, count, locate, point at and outline."""

from __future__ import annotations

import numpy as np

from k2jax.drawings.canvas import (
    COLOURS,
    COORDINATES,
    DrawnShape,
    Split,
    VisualSample,
    by_rows,
    cells_of,
    draw_shapes,
    in_brackets,
    kind_of_shape,
    max_shapes,
    thousandths,
)
from k2jax.drawings.labels import label_text

MAX_COUNTED, MAX_DESCRIBED = 6, 4
"""Most shapes that a question counts, and of a picture that is described."""
CORNERED = ("square", "triangle")
"""Shapes that have an outline: a circle is no polygon."""


def describe(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """A caption that says where things are: every feature is answered for, and no question has to be understood.

    The answer is each shape's colour, name and box.
    """
    kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, min(MAX_DESCRIBED, max_shapes(size)) + 1))]
    image, shapes = draw_shapes(rng, size, kinds)
    shapes = by_rows(shapes, size)
    boxes = thousandths([shape.box for shape in shapes], size)
    named = zip((f"{shape.colour} {shape.shape}" for shape in shapes), boxes, strict=True)
    answer = "".join(name + in_brackets(box) for name, box in named)
    return VisualSample(image, "describe", "What is there?", answer, boxes)


def count(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """Every number up to ``MAX_COUNTED`` is the answer equally often, so that guesses are worth little.

    The answer counts aloud, a tally and the number (``011/122/222=2``: how many there are up to each cell, row by row):
    a number alone says nothing about which of the shapes was taken for another.
    """
    kind = kind_of_shape(rng)
    number = int(rng.integers(min(MAX_COUNTED, max_shapes(size)) + 1))
    others = rng.integers(not number, max_shapes(size) - number + 1)
    image, shapes = draw_shapes(rng, size, [kind] * number + [kind_of_shape(rng, kind) for _ in range(others)])
    answer = f"{_tally([shape.box for shape in shapes[:number]], size)}={number}"
    return VisualSample(image, "count", f"How many {kind[1]} {kind[0]}s?", answer, _boxes_of(shapes, *kind, size))


def locate(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """The boxes ``[left,top,right,bottom]`` of all shapes of one kind, one after the other."""
    image, shapes, chosen = _some_shapes(rng, size)
    boxes = _boxes_of(shapes, chosen.shape, chosen.colour, size)
    label = {"type": "boxes", "boxes": boxes.tolist()}
    question = f"Where are {chosen.colour} {chosen.shape}s?"
    return VisualSample(image, "locate", question, label_text(label), boxes, label)


def point(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """The middles ``[x,y]`` of the boxes of all shapes of one kind, one after the other."""
    image, shapes, chosen = _some_shapes(rng, size)
    matches = [shape for shape in shapes if (shape.shape, shape.colour) == (chosen.shape, chosen.colour)]
    middles = [[(shape.box[0] + shape.box[2] + 1) / 2, (shape.box[1] + shape.box[3] + 1) / 2] for shape in matches]
    label = {"type": "points", "points": sorted(_in_thousandths(np.array(middles), size).tolist())}
    question = f"Point at the {chosen.colour} {chosen.shape}s."
    boxes = _boxes_of(shapes, chosen.shape, chosen.colour, size)
    return VisualSample(image, "point", question, label_text(label), boxes, label)


def outline(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """The corners ``[x,y,x,y,…]`` of the only shape of a kind, clockwise from the upper left or the top."""
    kind = str(rng.choice(CORNERED)), str(rng.choice(list(COLOURS)))
    others = rng.integers(max_shapes(size))
    image, shapes = draw_shapes(rng, size, [kind, *(kind_of_shape(rng, kind) for _ in range(others))])
    corners = _in_thousandths(_corners(shapes[0]), size)
    label = {"type": "polygons", "polygons": [corners.ravel().tolist()]}
    question = f"Outline the {kind[1]} {kind[0]}."
    return VisualSample(image, "outline", question, label_text(label), _boxes_of(shapes, *kind, size), label)


def _some_shapes(rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, list[DrawnShape], DrawnShape]:
    """A picture, its shapes, and one of them, whose kind is asked for."""
    kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, max_shapes(size) + 1))]
    image, shapes = draw_shapes(rng, size, kinds)
    return image, shapes, shapes[rng.integers(len(shapes))]


def _boxes_of(shapes: list[DrawnShape], name: str, colour: str, size: tuple[int, int]) -> np.ndarray:
    return thousandths(sorted(shape.box for shape in shapes if (shape.shape, shape.colour) == (name, colour)), size)


def _corners(shape: DrawnShape) -> np.ndarray:
    """Corners of what is drawn, ``[n, 2]`` in pixels from the picture's corner: pixel x reaches from x to x + 1."""
    left, top, right, bottom = shape.box
    if shape.shape == "square":
        return np.array([(left, top), (right + 1, top), (right + 1, bottom + 1), (left, bottom + 1)], float)
    return np.array([((left + right) // 2 + 0.5, top), (right + 1, bottom + 1), (left, bottom + 1)])


def _in_thousandths(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.rint(points * COORDINATES / np.array(size)).astype(int)


def _tally(boxes: list[tuple[int, int, int, int]], size: tuple[int, int]) -> str:
    """How many boxes lie in each cell and those before it, rows of cells apart."""
    across, down = cells_of(size)
    there = np.zeros((down, across), int)
    for left, top, _, _ in boxes:
        there[top // (size[1] // down), left // (size[0] // across)] += 1
    return "/".join("".join(map(str, row)) for row in there.cumsum().reshape(there.shape))
