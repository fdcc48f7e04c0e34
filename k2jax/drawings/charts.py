"""Bar charts with exact labels, drawn by matplotlib without global state: values, and which bar is extreme.

What is drawn and asked depends on the numbers alone; how letters look, on the version of matplotlib.
"""

from __future__ import annotations

import string
from typing import NamedTuple

import numpy as np
from PIL import Image

from k2jax.drawings.canvas import COLOURS, FONTS, INK, LEAST_POINTS, Split, VisualSample, blank, font_folder

LEVELS, LABELLED = 10, 2
"""Number of heights that a bar may have, each the same whole number of pixels; every second one is labelled."""
UNITS = (1, 5, 10)
"""What the lowest height is worth."""
MIN_BARS, MAX_BARS = 3, 8
LEAST_CHART = (112, 84)
"""Width and height of the smallest chart [pixels]: heights are six pixels apart, bars sixteen."""
_DPI = 64  # a power of two: the canvas then has exactly the pixels that are asked for
_LINE = (80, 80, 80)


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
    bars = int(rng.integers(MIN_BARS, min(MAX_BARS, frame.width * 9 // (16 * frame.text)) + 1))
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
    """A chart of bars with these names and levels, in whole pixels.

    Its parts are placed on the figure itself: axes take twice the time, and follow a user's ``matplotlibrc``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # a second to import
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import IdentityTransform

    inches = tuple(side / _DPI for side in frame.size)
    figure = Figure(figsize=inches, dpi=_DPI, facecolor=_share(background.getpixel((0, 0))))
    canvas, pixels = FigureCanvasAgg(figure), IdentityTransform()
    font = FontProperties(fname=str(font_folder() / FONTS[0]), size=frame.text * 72 / _DPI)
    high = round(0.73 * frame.text)  # of capitals and digits, in whole pixels: letters between two of them are blurred

    def fill(x: int, y: int, width: int, height: int, colour: tuple) -> None:
        style = {"facecolor": _share(colour), "linewidth": 0, "antialiased": False, "transform": pixels}
        figure.add_artist(Rectangle((x, y), width, height, **style))

    def write(text: str, x: float, y: int, align: str) -> None:
        style = {"fontproperties": font, "color": _share(INK), "transform": pixels}
        figure.text(x, y, text, horizontalalignment=align, verticalalignment="baseline", **style)

    for level in range(0, LEVELS + 1, LABELLED):
        y = frame.below + level * frame.level
        fill(frame.left, y - 1, frame.width, 1, _LINE)
        write(str(level * unit), frame.left - 3, y - high // 2, "right")
    slot = frame.width // len(levels)
    for place, (name, level) in enumerate(levels.items()):
        middle = frame.left + place * slot + slot // 2
        fill(middle - slot * 3 // 10, frame.below, slot * 6 // 10, level * frame.level, colour)
        write(name, middle, frame.below - 4 - high, "center")
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _share(colour: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(value / 255 for value in colour)
