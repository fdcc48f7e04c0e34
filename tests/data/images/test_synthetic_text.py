"""Tables and buttons are read anew: what a cell or a button shows is compared with texts drawn alone."""

from __future__ import annotations

import functools
import itertools
import re
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from PIL import Image, ImageDraw
import pytest
from scipy import ndimage

from k2jax.drawings.canvas import FONTS, LEAST_POINTS, SYLLABLES, font_of, random_word
from k2jax.drawings.screens import WIDTH
from k2jax.drawings.synthetic import synthetic_sample
from k2jax.drawings.text import COLUMN

RULE, FACE, INK = (60, 60, 60), (215, 215, 220), (20, 20, 20)


def cropped(pixels, background):
    """Pixels without the rows and columns of background around them."""
    ink = (pixels != background).any(-1)
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


@functools.lru_cache(4096)
def drawn(text, font, points, background):
    """A text on a background, cropped."""
    image = Image.new("RGB", (4 * points + 20 * len(text) * points // 10, 2 * points), background)
    ImageDraw.Draw(image).text((points, points // 4), text, fill=INK, font=font_of(font, points))
    return cropped(np.asarray(image), background)


def looks_like(pixels, text, background, fonts=FONTS):
    """The font and the size at which a text looks as some pixels do, or None."""
    if (pixels == background).all():
        return None
    shown = cropped(pixels, background)
    for font, points in itertools.product(fonts, range(9, 60)):
        left, top, right, bottom = font_of(font, points).getbbox(text)
        wider = right - left - shown.shape[1]  # by what is empty at the ends of a word
        if abs(bottom - top - shown.shape[0]) > 2 or not -2 <= wider <= 2 + points // 4:
            continue
        candidate = drawn(text, font, points, background)
        if candidate.shape == shown.shape and np.array_equal(candidate, shown):
            return font, points
    return None


def cells_of_table(image):
    """Pixels of each cell of a table, row by row."""
    pixels = np.asarray(image)
    lines = (pixels == RULE).all(-1)
    (below,), (beside,) = np.flatnonzero(lines.all(1)), np.flatnonzero(lines.all(0))
    rows, columns = image.height // below, image.width // beside
    return [[pixels[row * below + 1 : (row + 1) * below, column * beside + 1 : (column + 1) * beside]
             for column in range(columns)] for row in range(rows)]  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([(112, 112), (108, 60), (230, 130)]),
    split=st.sampled_from(["train", "held_out"]),
)
def test_the_cell_that_is_asked_for_shows_the_answer(seed, size, split):
    sample = synthetic_sample(seed, 0, kind="table", size=size, split=split)
    asked, of = re.fullmatch(r"What is the (\w+) of (\w+)\?", sample.question).groups()
    cells, background = cells_of_table(sample.image), sample.image.getpixel((0, 0))
    assert len(cells) >= 3 and len(cells[0]) >= 3
    columns = [looks_like(cell, asked, background) for cell in cells[0]]
    rows = [looks_like(row[0], of, background) for row in cells]
    ((column,), (row,)) = ([place for place, style in enumerate(styles) if style] for styles in (columns, rows))
    assert columns[column] == rows[row]
    styles = [[looks_like(cell, sample.answer, background, columns[column][:1]) for cell in row] for row in cells]
    found = [(y, x) for y, line in enumerate(styles) for x, style in enumerate(line) if style == columns[column]]
    assert found == [(row, column)]
    assert not (in_train(asked) ^ (split == "train")) and not (in_train(of) ^ (split == "train"))


def in_train(word):
    """Words of the split ``held_out`` are a tenth, by a checksum."""
    return zlib.crc32(word.lower().encode()) % 10 != 0


def buttons_of(image):
    """Boxes of a window's buttons, with their edges, and the pixels inside."""
    pixels = np.asarray(image)
    labelled, count = ndimage.label((pixels == FACE).all(-1), np.ones((3, 3)))
    found = []
    for rows, columns in ndimage.find_objects(labelled, count):
        if rows.stop - rows.start > 12 and columns.stop - columns.start > 40:  # else it is inside a letter
            inner = pixels[rows.start + 2 : rows.stop - 2, columns.start + 2 : columns.stop - 2]
            found.append(((columns.start - 1, rows.start - 1, columns.stop + 1, rows.stop + 1), inner))
    return found


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([(112, 112), (112, 70), (230, 130)]),
    split=st.sampled_from(["train", "held_out"]),
)
def test_the_action_clicks_the_middle_of_the_button_with_the_word(seed, size, split):
    sample = synthetic_sample(seed, 0, kind="click", size=size, split=split)
    word = re.fullmatch(r"Click (\w+)\.", sample.question)[1]
    buttons = buttons_of(sample.image)
    assert 2 <= len(buttons) <= 6
    (box,) = [box for box, inner in buttons if looks_like(inner, word, FACE)]
    assert sample.boxes.tolist() == np.rint(np.array([box]) * 1000 / np.tile(size, 2)).tolist()
    point = re.fullmatch(r"click\((\d+),(\d+)\)", sample.answer).groups()
    middle = np.reshape(box, (2, 2)).mean(0) * 1000 / size
    np.testing.assert_allclose(np.array(point, float), middle, atol=0.5)
    assert not (in_train(word) ^ (split == "train"))


def test_the_widest_words_fit_the_smallest_cells_and_buttons():
    """No syllable is wider than "mu", in any font."""
    for font, first in itertools.product(FONTS, SYLLABLES):
        for word, room in ((first + "mu", COLUMN - 4), (first.capitalize() + "mumu", WIDTH - 8)):
            left, _, right, _ = font_of(font, LEAST_POINTS).getbbox(word)
            assert right - left <= room, word


@pytest.mark.parametrize("most", [2, 3, 4])
def test_words_are_of_their_split_whatever_their_length(most):
    rng = np.random.default_rng(0)
    for split in ("train", "held_out"):
        words = [random_word(rng, split, most) for _ in range(100)]
        assert {len(word) // 2 for word in words} == set(range(2, most + 1))
        assert all(in_train(word) == (split == "train") for word in words)
