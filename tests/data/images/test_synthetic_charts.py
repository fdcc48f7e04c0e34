"""Charts are read anew from their pixels: heights are measured, and letters compared with letters drawn alone."""

from __future__ import annotations

from collections import Counter
import functools
import string

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
import numpy as np
from scipy import ndimage

from k2jax.drawings import charts as synthetic_charts
from k2jax.drawings.canvas import COLOURS, font_folder
from k2jax.drawings.synthetic import synthetic_sample

LINE, INK = 80, 20
SHIFTS = 16


def cropped(ink):
    """What is not 0 of an array, without the empty rows and columns around it."""
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


@functools.cache
def letters(text, pixels):
    """How dark each pixel of a text is, 0 to 1, cropped; at several places between two pixels."""
    figure = Figure(figsize=(2, 16), dpi=64)
    font = FontProperties(fname=str(font_folder() / "DejaVuSans.ttf"), size=pixels * 72 / 64)
    for place in range(SHIFTS):
        figure.text((5 + place / SHIFTS) / 128, (place + 0.5) / SHIFTS, text, fontproperties=font)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    dark = 1 - np.asarray(canvas.buffer_rgba())[..., 0] / 255
    return [cropped(part) for part in np.split(dark, SHIFTS)]


def read_text(ink, pixels, texts):
    """The only one of some texts that looks like an array of how dark pixels are."""
    ink = cropped(ink)
    same = [text for text in texts if any(drawn.shape == ink.shape and np.abs(drawn - ink).max() < 0.12
                                          for drawn in letters(text, pixels))]  # fmt: skip
    assert len(same) == 1, same
    return same[0]


def read_chart(image):
    """Values of the bars of a chart by their names."""
    pixels = np.asarray(image).astype(float)
    background = pixels[0, 0]
    (colour,) = [value for value in COLOURS.values() if (pixels == value).all(-1).any()]
    lines = np.flatnonzero((np.abs(pixels[:, -5] - LINE) < 40).all(-1))  # no bar reaches the last columns
    lines = lines[np.insert(np.diff(lines) > 1, 0, True)]
    zero, distances = lines[-1], np.diff(lines)
    assert len(lines) == 6 and np.ptp(distances) == 0
    bars, _ = ndimage.label((pixels == colour).all(-1))
    em = max(9, min(image.size) // 16)
    dark = np.clip((background - pixels) / (background - INK), 0, 1).mean(-1)
    dark[dark < 0.02] = 0
    heights = {}
    for rows, columns in ndimage.find_objects(bars):
        assert abs(rows.stop - zero) <= 1
        centre, reach = (columns.start + columns.stop) / 2, em
        name = read_text(dark[zero + 2 :, round(centre - reach * 0.75) : round(centre + reach * 0.75)], em,
                         string.ascii_uppercase)  # fmt: skip
        heights[name] = round((rows.stop - rows.start) * 2 / distances[0], 6)
    left = np.flatnonzero((np.abs(pixels[zero] - LINE) < 5).all(-1))[0]
    highest = int(read_text(dark[: lines[0] + em // 2 + 1, : left - 1], em, ["10", "50", "100"]))
    return {name: level * highest / 10 for name, level in heights.items()}


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([(112, 112), (112, 84), (210, 150)]))
def test_answers_are_those_of_the_bars_that_the_pixels_show(seed, size):
    sample = synthetic_sample(seed, 0, kind="chart", size=size)
    assert sample.image.size == size
    values = read_chart(sample.image)
    if "value" in sample.question:
        answer = f"{values[sample.question[-2]]:g}"
    else:
        chosen = max if "highest" in sample.question else min
        answer = chosen(values, key=values.get)
    assert sample.answer == answer and len(set(values.values())) == len(values) >= 3


def test_no_question_is_rare_and_no_answer_is_guessed_easily(monkeypatch):
    monkeypatch.setattr(synthetic_charts, "_draw", lambda background, *_, **__: background)  # takes most of the time
    samples = [synthetic_sample(0, index, kind="chart") for index in range(400)]
    for word, share in (("value", 0.5), ("highest", 0.25), ("lowest", 0.25)):
        answers = Counter(sample.answer for sample in samples if word in sample.question)
        assert abs(answers.total() / len(samples) - share) < 0.1
        assert max(answers.values()) < 0.2 * answers.total() and len(answers) > 15


def test_a_chart_does_not_follow_the_users_style(monkeypatch):
    """A user's ``matplotlibrc`` changes nothing of the picture."""
    import matplotlib

    before = synthetic_sample(0, 0, kind="chart").image
    with monkeypatch.context() as changed:
        for key, value in {"axes.grid": True, "axes.facecolor": "black", "figure.dpi": 33, "font.size": 30,
                           "savefig.dpi": 20, "axes.linewidth": 9, "text.color": "red", "lines.linewidth": 7,
                           "patch.edgecolor": "red", "font.family": "serif", "axes.spines.top": False,
                           "patch.antialiased": True, "figure.facecolor": "red",
                           "ytick.labelsize": 3, "figure.autolayout": True}.items():  # fmt: skip
            changed.setitem(matplotlib.rcParams, key, value)
        after = synthetic_sample(0, 0, kind="chart").image
    assert np.array_equal(before, after)
