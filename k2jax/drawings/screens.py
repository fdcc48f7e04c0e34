"""Pictures of a window with labelled buttons, and the action that clicks one of them."""

from __future__ import annotations

import numpy as np
from PIL import ImageDraw

from k2jax.drawings.canvas import (
    COORDINATES,
    FONTS,
    LEAST_POINTS,
    Split,
    VisualSample,
    blank,
    common_font,
    draw_centred,
    random_word,
    thousandths,
)

BAR = 14
"""Height of a window's bar [pixels]."""
WIDTH, HEIGHT = 56, 28
"""Fewest pixels of a button with the space around it."""
MAX_ACROSS, MAX_DOWN, MAX_BUTTONS = 3, 6, 6
LEAST_SCREEN = (2 * WIDTH, BAR + 2 * HEIGHT)
"""Width and height of the smallest window, with room for four buttons [pixels]."""
_TITLE, _CLOSE, _FACE, _EDGE = (60, 70, 95), (200, 200, 205), (215, 215, 220), (50, 50, 50)


def click(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """Buttons with different words; the answer is ``click(x,y)``, the middle of one in thousandths of the sides."""
    across, down = min(MAX_ACROSS, size[0] // WIDTH), min(MAX_DOWN, (size[1] - BAR) // HEIGHT)
    count = int(rng.integers(2, min(MAX_BUTTONS, across * down) + 1))
    words: dict[str, tuple[int, int, int, int]] = {}
    cell = np.array([size[0] // across, (size[1] - BAR) // down])
    for place in rng.permutation(across * down)[:count]:
        corner = np.array([place % across, place // across]) * cell + (0, BAR)
        word = random_word(rng, split, max_syllables=3).capitalize()
        while word in words:
            word = random_word(rng, split, max_syllables=3).capitalize()
        words[word] = _button(rng, corner, cell)
    image = blank(rng, size)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, size[0] - 1, BAR - 1), fill=_TITLE)
    draw.rectangle((size[0] - 10, 4, size[0] - 5, BAR - 5), fill=_CLOSE)
    name = str(rng.choice(FONTS))
    for word, box in words.items():
        draw.rounded_rectangle(box, radius=3, fill=_FACE, outline=_EDGE)
        room = (box[2] - box[0] - 5, box[3] - box[1] - 5)
        draw_centred(draw, word, box, common_font(name, [word], room, max(LEAST_POINTS, room[1])))
    asked = str(rng.choice(list(words)))
    left, top, right, bottom = words[asked]
    x, y = np.rint(np.array([left + right + 1, top + bottom + 1]) * COORDINATES / 2 / np.array(size)).astype(int)
    return VisualSample(image, "click", f"Click {asked}.", f"click({x},{y})", thousandths([words[asked]], size))


def _button(rng: np.random.Generator, corner: np.ndarray, cell: np.ndarray) -> tuple[int, int, int, int]:
    """A box of pixels inside a cell, at least as large as the smallest cell less a rim."""
    sides = rng.integers((WIDTH - 2, min(HEIGHT - 8, cell[1] - 4)), cell - 1)
    left, top = (int(edge) for edge in corner + 1 + rng.integers(0, cell - 1 - sides))
    return left, top, left + int(sides[0]) - 1, top + int(sides[1]) - 1
