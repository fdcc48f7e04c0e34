"""Labels of synthetic clips against their own pixels; files of clips hold exactly these."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data.images.frames import read_clip
from k2jax.drawings.canvas import COLOURS
from k2jax.drawings.clips import CLIP_KINDS, WAYS, encode_clip, synthetic_clip

SAMPLES = {"seed": st.integers(0, 10**6), "index": st.integers(0, 10**6), "frames": st.integers(2, 17)}


def centres(frame):
    """The middle (x, y) of the pixels of every colour in a frame."""
    pixels = np.asarray(frame)
    masks = {name: (pixels == colour).all(-1) for name, colour in COLOURS.items()}
    return {name: np.argwhere(mask).mean(0)[::-1] for name, mask in masks.items() if mask.any()}


@settings(max_examples=40, deadline=None)
@given(**SAMPLES, side=st.integers(28, 80))
def test_the_square_goes_once_where_the_answer_says(seed, index, frames, side):
    sample = synthetic_clip(seed, index, kind="way", frames=frames, side=side)
    places = [*map(centres, sample.frames)]
    (colour,) = {name for place in places for name in place}
    moved = np.diff([place[colour] for place in places], axis=0)
    (jump,) = moved[moved.any(1)]
    assert tuple(np.sign(jump).astype(int)) == WAYS[sample.answer]
    assert np.abs(jump).sum() == side // 3


@settings(max_examples=40, deadline=None)
@given(**SAMPLES, side=st.integers(28, 80))
def test_the_answer_is_the_colour_of_the_earlier_of_two_frames(seed, index, frames, side):
    sample = synthetic_clip(seed, index, kind="first", frames=frames, side=side)
    seen = [(at, name) for at, frame in enumerate(sample.frames) for name in centres(frame)]
    (earlier, first), (later, second) = sorted(seen)
    assert earlier < later and first == sample.answer
    assert sample.question == f"{' or '.join(sorted((first, second)))} first?"


@settings(max_examples=15, deadline=None)
@given(**SAMPLES, kind=st.sampled_from(CLIP_KINDS))
def test_a_clip_is_a_function_of_its_arguments_and_its_file_holds_its_pixels(seed, index, frames, kind):
    some, again = (synthetic_clip(seed, index, kind=kind, frames=frames) for _ in range(2))
    other = synthetic_clip(seed, index, kind=kind, frames=frames, split="held_out")
    read = read_clip(encode_clip(some.frames, 2))
    assert read.times == tuple(number / 2 for number in range(frames))
    for mine, same, kept in zip(some.frames, again.frames, read.frames, strict=True):
        assert np.array_equal(mine, same) and np.array_equal(mine, kept)
    assert any(not np.array_equal(a, b) for a, b in zip(some.frames, other.frames, strict=True))


@pytest.mark.parametrize("kind", CLIP_KINDS)
def test_no_answer_and_no_frame_is_much_more_frequent_than_another(kind):
    samples = [synthetic_clip(0, index, kind=kind, frames=8) for index in range(800)]
    answers = [sample.answer for sample in samples]
    counts = [answers.count(answer) for answer in sorted(set(answers))]
    assert len(counts) == 4 and min(counts) > 150
    if kind == "first":  # neither its place in the question nor in the alphabet tells which
        assert 330 < sum(sample.question.startswith(sample.answer) for sample in samples) < 470
