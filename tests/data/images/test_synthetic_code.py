"""The code of a picture, parsed as XML and drawn anew, is the picture."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from scipy import ndimage

from k2jax.data.images.conversations import drawn_conversation
from k2jax.drawings.synthetic import synthetic_sample

SVG = "{http://www.w3.org/2000/svg}"
CSS = {"gray": (128, 128, 128), "red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "orange": (255, 165, 0)}
FINER = 6
"""Points of a pixel's side that are asked what they show."""


def inside(element, x, y):
    """Whether points are inside an element of SVG."""
    number = lambda name: float(element.get(name))  # noqa: E731
    if element.tag == SVG + "rect":
        left, top = number("x"), number("y")
        return (x >= left) & (x < left + number("width")) & (y >= top) & (y < top + number("height"))
    if element.tag == SVG + "circle":
        return (x - number("cx")) ** 2 + (y - number("cy")) ** 2 <= number("r") ** 2
    assert element.tag == SVG + "polygon"
    corners = np.array(element.get("points").split(), float).reshape(-1, 2)
    crossed = np.zeros(x.shape, bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            crossed ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return crossed


def drawn(code):
    """The pixels of a text of SVG, float ``[height, width, 3]``: means of finer points, the later element on top."""
    root = ElementTree.fromstring(code)
    assert root.tag == SVG + "svg"
    width, height = int(root.get("width")), int(root.get("height"))
    y, x = (np.mgrid[: height * FINER, : width * FINER] + 0.5) / FINER
    pixels = np.full((height * FINER, width * FINER, 3), -1.0)
    for element in root:
        pixels[inside(element, x, y)] = CSS[element.get("fill")]
    return pixels.reshape(height, FINER, width, FINER, 3).mean((1, 3))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([(112, 112), (75, 64)]))
def test_the_code_draws_the_picture(seed, size):
    """But for edges that are slanted or round, where fewer or more points of a pixel are asked."""
    sample = synthetic_sample(seed, 0, kind="code", size=size)
    expected = drawn(sample.answer)
    assert expected.shape == (size[1], size[0], 3) and len(sample.boxes) == sample.answer.count("/>") - 1
    differences = np.abs(expected - np.asarray(sample.image, float)).max(-1)
    assert differences.max() < 30
    regions, _ = ndimage.label((np.asarray(sample.image) != CSS["gray"]).any(-1))
    seen = [(columns.start, rows.start, columns.stop, rows.stop) for rows, columns in ndimage.find_objects(regions)]
    shown = sorted(np.rint(np.array(seen) * 1000 / np.tile(size, 2)).astype(int).tolist())
    assert sorted(sample.boxes.tolist()) == shown
    slanted = "<circle" in sample.answer or "<polygon" in sample.answer
    assert slanted or differences.max() == 0


def test_code_of_different_pictures_differs_has_every_element_and_the_picture_keeps_its_colours():
    samples = [synthetic_sample(0, index, kind="code") for index in range(30)]
    answers = {sample.answer for sample in samples}
    assert len(answers) == len({sample.image.tobytes() for sample in samples}) > 25
    for shape in ("rect", "circle", "polygon"):  # the first element is the background
        assert any(f"<{shape} " in answer.partition("/>")[2] for answer in answers)
    assert not drawn_conversation(samples[0]).permitted
