"""Tasks about pictures that are drawn with exact labels: each kind of question with its verifier and its truth."""

from __future__ import annotations

import base64
from collections.abc import Iterable
import io
import itertools
from typing import Any

import numpy as np
from PIL import Image

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.drawings.canvas import VisualSample
from k2jax.drawings.synthetic import BASIC_KINDS, KINDS, least_size, synthetic_sample
from k2jax.errors import UserError, nearest
from k2jax.tasks.pictures.verifier import SIZE, TRUTH

VERIFIERS = {
    "read": "visual_words",
    "describe": "visual_words",
    "count": "visual_count",
    "locate": "visual_boxes",
    "point": "visual_points",
    "outline": "visual_polygon",
    "table": "visual_words",
    "code": "visual_words",
    "click": "visual_click",
}
"""Name of the verifier by kind of question; of a chart see ``verifier_of``."""


class Pictures:
    """Drawn pictures of some kinds, in turn; a task is a function of seed, kind, number and split."""

    def __init__(
        self,
        kinds: tuple[str, ...] = BASIC_KINDS,
        count: int = 2000,
        side: int = 112,
        height: int = 0,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of tasks.

        Args:
            kinds: of ``synthetic.KINDS``.
            count: number of tasks.
            side: width of the pictures [pixels].
            height: of the pictures [pixels]; 0 is their width.
            seed: of the drawings.
            split: ``train`` or ``test``, whose words are never in ``train``.

        Raises:
            UserError: a kind is unknown or needs larger pictures, or there is nothing to draw.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f"pictures: no kind {kind!r}{nearest(kind, KINDS)}")
        if not kinds or count < 1:
            raise UserError("pictures: name a kind, and a count above 0")
        least = least_size(kinds)
        if side < least[0] or (height or side) < least[1]:
            raise UserError(f"pictures: {', '.join(kinds)} need a side of {least[0]} and a height of {least[1]} pixels")
        self._kinds, self._count, self._seed = kinds, count, seed
        self._size, self._split = (side, height or side), "train" if split == "train" else "held_out"

    def load(self) -> Iterable[Task]:
        """The tasks, each with its picture in a data URL."""
        for number, kind in zip(range(self._count), itertools.cycle(self._kinds), strict=False):
            options = {"kind": kind, "split": self._split, "size": self._size}
            sample = synthetic_sample(self._seed, number, **options)
            content = [
                picture_part(sample.image),
                {"type": "text", "text": sample.question},
            ]
            yield Task(
                f"{kind}-{self._split}-{number}",
                f"pictures/{kind}",
                ({"role": "user", "content": content},),
                verifier_of(sample),
                metadata={TRUTH: truth_of(sample), SIZE: list(sample.image.size)},
            )


def data_url(image: Image.Image) -> str:
    """An image as a PNG in a data URL, which a trajectory can keep."""
    return f"data:image/png;base64,{png(image)}"


def png(image: Image.Image) -> str:
    """An image as a PNG, in Base64."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def picture_part(image: Image.Image) -> dict[str, Any]:
    """The part of a message's content that shows an image."""
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def verifier_of(sample: VisualSample) -> str:
    """Name of the verifier of an answer; a chart's is a value, the nearer the better, or the name of a bar."""
    if sample.kind == "chart":
        return "visual_count" if sample.answer.isdecimal() else "visual_words"
    return VERIFIERS[sample.kind]


def truth_of(sample: VisualSample) -> str | int | list[list[int]]:
    """What the sample's verifier compares with, as ``metadata["truth"]`` has it."""
    verifier = verifier_of(sample)
    if verifier == "visual_words":
        return sample.answer
    if verifier == "visual_count":
        return int(sample.answer.rpartition("=")[2])
    if sample.kind == "outline":
        return np.reshape(sample.label["polygons"][0], (-1, 2)).tolist()
    return sample.label["points"] if sample.kind == "point" else sample.boxes.tolist()
