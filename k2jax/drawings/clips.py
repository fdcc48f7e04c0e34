"""Clips of shapes with exact labels: which way one moves, and which of two came first.

A sample is a function of seed, index, kind and number of frames; with another number it shows the same at other times.
What happens takes one frame of the clip, at any place: it is seen by whoever sees every frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import io
from typing import Literal, NamedTuple, get_args
import zlib

import numpy as np
from PIL import Image, ImageDraw

from k2jax.drawings.canvas import COLOURS, GREY, Split

ClipKind = Literal["way", "first"]
CLIP_KINDS = get_args(ClipKind)

WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
LEAST_FRAMES, LEAST_SIDE = 2, 28
"""Fewest frames of a clip, and the shortest side of its frames [pixels]."""


class ClipSample(NamedTuple):
    """A clip and a question about it.

    Attributes:
        frames: in RGB, of one size.
        kind: what is asked.
        question: in English.
        answer: one word: where the shape went, or the colour of what came first.
        shown: for each frame the boxes left, top, right and bottom of what it shows, by colour, in pixels; the pixels
            ``right`` and ``bottom`` belong to it.
    """

    frames: tuple[Image.Image, ...]
    kind: ClipKind
    question: str
    answer: str
    shown: tuple[dict[str, tuple[int, int, int, int]], ...]


def synthetic_clip(
    seed: int, index: int, *, kind: ClipKind, frames: int, split: Split = "train", side: int = LEAST_SIDE
) -> ClipSample:
    """Makes a sample.

    Args:
        seed: of the data set.
        index: number of the sample.
        kind: what is asked: ``way`` shows a square that jumps once and stays there, ``first`` two squares that are
            shown for one frame each.
        frames: of the clip, at least ``LEAST_FRAMES``.
        split: the same numbers are another clip in the other split.
        side: of a frame, at least ``LEAST_SIDE`` [pixels].
    """
    rng = np.random.default_rng([seed, index, zlib.crc32(f"clip {kind} {split}".encode())])
    grey = tuple(int(value) for value in rng.integers(GREY - 16, GREY + 17, 3))
    question, answer, shown = _MAKERS[kind](rng, frames, side)
    return ClipSample(tuple(_frame(boxes, grey, side) for boxes in shown), kind, question, answer, tuple(shown))


def _way(rng: np.random.Generator, frames: int, side: int) -> tuple[str, str, list[dict]]:
    size = side // 3
    colour, way = str(rng.choice(list(COLOURS))), str(rng.choice(list(WAYS)))
    jump = size * np.array(WAYS[way])
    low, high = np.maximum(0, -jump), side - size - np.maximum(0, jump)
    corner, at = rng.integers(low, high + 1), rng.integers(1, frames)
    boxes = [_box(corner + jump * (frame >= at), size) for frame in range(frames)]
    return "Which way?", way, [{colour: box} for box in boxes]


def _first(rng: np.random.Generator, frames: int, side: int) -> tuple[str, str, list[dict]]:
    size = side // 3
    colours = [str(colour) for colour in rng.permutation(list(COLOURS))[:2]]
    boxes = [_box(rng.integers(0, side - size + 1, 2), size) for _ in colours]
    shown: list[dict] = [{} for _ in range(frames)]
    for colour, box, at in zip(colours, boxes, sorted(rng.permutation(frames)[:2]), strict=True):
        shown[at][colour] = box
    return f"{' or '.join(sorted(colours))} first?", colours[0], shown


_MAKERS: dict[str, Callable[..., tuple[str, str, list[dict]]]] = {"way": _way, "first": _first}


def _box(corner: np.ndarray, size: int) -> tuple[int, int, int, int]:
    left, top = map(int, corner)
    return left, top, left + size - 1, top + size - 1


def _frame(boxes: dict[str, tuple[int, int, int, int]], grey: tuple, side: int) -> Image.Image:
    image = Image.new("RGB", (side, side), grey)
    for colour, box in boxes.items():
        ImageDraw.Draw(image).rectangle(box, fill=COLOURS[colour])
    return image


def encode_clip(frames: Sequence[Image.Image], rate: float) -> bytes:
    """A video file with exactly these pixels (FFV1 in Matroska, by PyAV).

    Args:
        frames: in RGB, of one size.
        rate: frames per second.
    """
    from fractions import Fraction

    import av  # of the extra ``vision``

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=Fraction(rate).limit_denominator(1000))
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    return buffer.getvalue()
