"""Pictures with their code: a few shapes, and the text of the SVG file that is drawn here.

One list of elements makes both the text and the picture. Names of colours are those of CSS, which Pillow knows too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from k2jax.drawings.canvas import (
    DrawnShape,
    Split,
    VisualSample,
    by_rows,
    kind_of_shape,
    max_shapes,
    place_shapes,
    thousandths,
)

MAX_ELEMENTS = 3
"""Most shapes of a picture that is written as code."""
BACKGROUND = "gray"
"""The grey of 128: 0 after normalisation."""
FINER = 8
"""Shapes are drawn on a grid this many times finer, and averaged: their edges are smooth, as browsers draw them."""


class SvgElement(NamedTuple):
    """One element of an SVG file.

    Attributes:
        tag: ``rect``, ``circle`` or ``polygon``.
        numbers: coordinates and lengths by their attributes, in pixels; of a polygon ``points``, x and y by turns.
        fill: name of its colour.
    """

    tag: str
    numbers: dict[str, tuple[float, ...]]
    fill: str

    @property
    def text(self) -> str:
        """The element as it is written."""
        named = "".join(f' {name}="{_written(values)}"' for name, values in self.numbers.items())
        return f'<{self.tag}{named} fill="{self.fill}"/>'

    def draw(self, draw: ImageDraw.ImageDraw, scale: int) -> None:
        """Draws it, ``scale`` times as large."""
        scaled = {name: [value * scale for value in values] for name, values in self.numbers.items()}
        if self.tag == "rect":
            (x,), (y,), (width,), (height,) = (scaled[name] for name in ("x", "y", "width", "height"))
            draw.rectangle((x, y, x + width - 1, y + height - 1), fill=self.fill)
        elif self.tag == "circle":
            (x,), (y,), (r,) = (scaled[name] for name in ("cx", "cy", "r"))
            draw.ellipse((x - r, y - r, x + r - 1, y + r - 1), fill=self.fill)
        else:
            # Pillow fills the pixels of the corners too: of the last ones, those before them are the element's.
            corners = np.array(scaled["points"]).reshape(-1, 2)
            draw.polygon(np.minimum(corners, corners.max(0) - 1).ravel().tolist(), fill=self.fill)


def code(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """One shape or a few, row of cells by row; the answer is the SVG file that draws the picture."""
    kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, min(MAX_ELEMENTS, max_shapes(size)) + 1))]
    shapes = by_rows(place_shapes(rng, size, kinds), size)
    elements = [_background(size), *map(_element, shapes)]
    boxes = thousandths([shape.box for shape in shapes], size)
    return VisualSample(_drawn(elements, size), "code", "What is its SVG code?", _file(elements, size), boxes)


def _background(size: tuple[int, int]) -> SvgElement:
    return SvgElement("rect", {"x": (0,), "y": (0,), "width": (size[0],), "height": (size[1],)}, BACKGROUND)


def _element(shape: DrawnShape) -> SvgElement:
    left, top, side = shape.box[0], shape.box[1], shape.box[2] + 1 - shape.box[0]
    middle = (left + side / 2, top + side / 2)
    if shape.shape == "square":
        numbers = {"x": (left,), "y": (top,), "width": (side,), "height": (side,)}
        return SvgElement("rect", numbers, shape.colour)
    if shape.shape == "circle":
        return SvgElement("circle", {"cx": middle[:1], "cy": middle[1:], "r": (side / 2,)}, shape.colour)
    corners = (middle[0], top, left + side, top + side, left, top + side)
    return SvgElement("polygon", {"points": corners}, shape.colour)


def _file(elements: list[SvgElement], size: tuple[int, int]) -> str:
    drawn = "".join(element.text for element in elements)
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}">{drawn}</svg>'


def _drawn(elements: list[SvgElement], size: tuple[int, int]) -> Image.Image:
    image = Image.new("RGB", (size[0] * FINER, size[1] * FINER))
    for element in elements:
        element.draw(ImageDraw.Draw(image), FINER)
    return image.reduce(FINER)


def _written(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
