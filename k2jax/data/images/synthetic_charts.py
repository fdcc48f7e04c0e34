"""Bar charts with exact labels, drawn by matplotlib without global state: values, and which bar is extreme.

What is drawn and asked depends on the numbers alone; how letters look, on the version of matplotlib.
"""

from __future__ import annotations

import string
from typing import NamedTuple

import numpy as np
from PIL import Image

from k2jax.data.images.synthetic_drawing import (
    COLOURS,
    FONTS,
    INK,
    LEAST_POINTS,
    Split,
    VisualSample,
    blank,
    font_folder,
)

LEVELS, LABELLED = 10, 2
"""A bar has one of so many heights, each the same whole number of pixels; every second one is labelled."""
UNITS = (1, 5, 10)
"""What the lowest height is worth."""
LEAST_BARS, MOST_BARS = 3, 8
LEAST_CHART = (112, 84)
"""Width and height of the smallest chart [pixels]: heights are six pixels apart, bars sixteen."""
_DPI = 64  # a power of two: the canvas then has exactly the pixels that are asked for
_LINE = tuple(value / 255 for value in (80, 80, 80))


class _Frame(NamedTuple):
    """Where bars stand, in pixels."""

    size: tuple[int, int]
    text: int  # em
    left: int
    below: int
    width: int
    level: int  # height of one level


def chart(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """Bars of different heights; the answer is the value of one, or the name of the highest or the lowest."""
    frame = _frame(size)
    bars = int(rng.integers(LEAST_BARS, min(MOST_BARS, frame.width * 9 // (16 * frame.text)) + 1))
    levels = rng.permutation(LEVELS)[:bars] + 1
    names = [string.ascii_uppercase[number] for number in rng.permutation(26)[:bars]]
    unit, colour = int(rng.choice(UNITS)), COLOURS[str(rng.choice(list(COLOURS)))]
    image = _draw(blank(rng, size), frame, dict(zip(names, levels.tolist(), strict=True)), unit=unit, colour=colour)
    asked = str(rng.choice(("value", "value", "highest", "lowest")))
    if asked == "value":
        bar = int(rng.integers(bars))
        question, answer = f"What is the value of {names[bar]}?", str(levels[bar] * unit)
    else:
        question = f"Which bar is {asked}?"
        answer = names[levels.argmax() if asked == "highest" else levels.argmin()]
    return VisualSample(image, "chart", question, answer, np.zeros((0, 4), int))


def _frame(size: tuple[int, int]) -> _Frame:
    text = max(LEAST_POINTS, min(size) // 16)
    left, below, above, right = 2 * text + 6, text + 7, text // 2 + 2, 4
    return _Frame(size, text, left, below, size[0] - left - right, (size[1] - below - above) // LEVELS)


def _draw(background: Image.Image, frame: _Frame, levels: dict[str, int], *, unit: int, colour: tuple) -> Image.Image:
    """A chart of bars with these names and levels; whatever a user's ``matplotlibrc`` says is named here."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # a second to import
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    (width, height), inside = frame.size, (frame.width, frame.level * LEVELS)
    grey = tuple(value / 255 for value in background.getpixel((0, 0)))
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=grey, layout="none")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((frame.left / width, frame.below / height, inside[0] / width, inside[1] / height))
    axes.set(xlim=(-0.5, len(levels) - 0.5), ylim=(0, LEVELS), xticks=[], yticks=[], facecolor=grey)
    axes.grid(False)
    axes.spines[:].set(visible=False)
    labelled = range(0, LEVELS + 1, LABELLED)
    axes.hlines(labelled, -0.5, len(levels) - 0.5, colors=[_LINE], linewidth=72 / _DPI, zorder=1, clip_on=False)
    # Without smooth edges a bar has its colour and no other, and whole pixels of height.
    fill = tuple(value / 255 for value in colour)
    axes.bar(range(len(levels)), levels.values(), 0.6, color=fill, linewidth=0, antialiased=False, snap=False, zorder=2)
    points = frame.text * 72 / _DPI
    font = FontProperties(fname=str(font_folder() / FONTS[0]), size=points)
    style = {"fontproperties": font, "color": tuple(value / 255 for value in INK), "annotation_clip": False}
    style |= {"textcoords": "offset pixels", "va": "baseline"}
    high = round(0.73 * frame.text)  # of capitals and digits, in whole pixels: letters between two of them are blurred
    for place, name in enumerate(levels):
        axes.annotate(name, (place, 0), (0, -4 - high), ha="center", **style)
    for level in labelled:
        axes.annotate(str(level * unit), (-0.5, level), (-3, -(high // 2)), ha="right", **style)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
