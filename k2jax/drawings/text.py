"""Pictures with exact labels whose text is read: words, and one cell of a table."""

from __future__ import annotations

import numpy as np
from PIL import ImageDraw

from k2jax.drawings.canvas import (
    CELL,
    FONTS,
    INK,
    Split,
    VisualSample,
    blank,
    common_font,
    draw_centred,
    fitting_font,
    random_word,
)

MAX_WORDS = 2
"""Most words of a picture, one below the other."""
COLUMN, LINE = 36, 20
"""Fewest pixels of a table's column and line: names of two syllables fit at the smallest size of text."""
MAX_COLUMNS, MAX_LINES = 4, 5
"""Most columns and lines of numbers."""
LEAST_TABLE = (3 * COLUMN, 3 * LINE)
"""Width and height of the smallest table, of two columns and two lines of numbers [pixels]."""
NUMBERS = 100
"""Numbers of tables are below this."""
RULE = (60, 60, 60)
"""Colour of a table's lines."""


def read(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """One word or two, one below the other; the answer is the words."""
    lines = min(MAX_WORDS, size[1] // CELL)
    words = [random_word(rng, split) for _ in range(rng.integers(1, lines + 1))]
    image = blank(rng, size)
    draw = ImageDraw.Draw(image)
    height = size[1] // len(words)
    for line, word in enumerate(words):
        font = fitting_font(str(rng.choice(FONTS)), word, (size[0] - 4, height - 4), rng)
        left, top, right, bottom = draw.textbbox((0, 0), word, font=font)
        x = rng.integers(0, size[0] - (right - left) + 1) - left
        y = line * height + rng.integers(0, height - (bottom - top) + 1) - top
        draw.text((int(x), int(y)), word, fill=INK, font=font)
    return VisualSample(image, "read", "What does it say?", " ".join(words), np.zeros((0, 4), int))


def table(rng: np.random.Generator, split: Split, size: tuple[int, int]) -> VisualSample:
    """Numbers under names of columns and beside names of rows; the answer is one of them.

    Names and numbers occur once each, so that a wrong cell is a wrong answer.
    """
    columns = int(rng.integers(2, min(MAX_COLUMNS, size[0] // COLUMN - 1) + 1))
    lines = int(rng.integers(2, min(MAX_LINES, size[1] // LINE - 1) + 1))
    names = _names(rng, split, columns + lines)
    numbers = rng.permutation(NUMBERS)[: columns * lines].reshape(lines, columns)
    texts = [["", *names[:columns]]]
    texts += [[name, *map(str, row)] for name, row in zip(names[columns:], numbers, strict=True)]
    image = blank(rng, size)
    draw = ImageDraw.Draw(image)
    width, height = size[0] // (columns + 1), size[1] // (lines + 1)
    room = (width - 4, height - 4)
    font = common_font(str(rng.choice(FONTS)), [text for row in texts for text in row if text], room, height)
    for line, row in enumerate(texts):
        for column, text in enumerate(row):
            box = (column * width, line * height, (column + 1) * width - 1, (line + 1) * height - 1)
            draw_centred(draw, text, box, font)
    draw.line((0, height, size[0], height), fill=RULE)
    draw.line((width, 0, width, size[1]), fill=RULE)
    line, column = int(rng.integers(lines)), int(rng.integers(columns))
    question = f"What is the {names[column]} of {names[columns + line]}?"
    return VisualSample(image, "table", question, str(numbers[line, column]), np.zeros((0, 4), int))


def _names(rng: np.random.Generator, split: Split, count: int) -> list[str]:
    """Different words of two syllables."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[random_word(rng, split, max_syllables=2)] = None
    return list(names)
