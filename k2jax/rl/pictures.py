"""Tasks about pictures that are drawn with exact labels: words to read, shapes to describe, count and locate."""

from __future__ import annotations

import base64
from collections.abc import Iterable
import io
import itertools

from PIL import Image

from k2jax.data.images.synthetic import BASIC_KINDS, KINDS, synthetic_sample
from k2jax.data.images.synthetic_drawing import VisualSample
from k2jax.env.split import Split
from k2jax.env.task import Task
from k2jax.errors import UserError, nearest

_VERIFIERS = {"read": "visual_words", "describe": "visual_words", "count": "visual_count", "locate": "visual_boxes"}


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
            kinds: of ``read``, ``describe``, ``count`` and ``locate``.
            count: number of tasks.
            side: width of the pictures [pixels].
            height: of the pictures [pixels]; 0 is their width.
            seed: of the drawings.
            split: ``train`` or ``test``, whose words are never in ``train``.

        Raises:
            UserError: a kind is unknown, or there is nothing to draw.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f"pictures: no kind {kind!r}{nearest(kind, KINDS)}")
        if not kinds or count < 1:
            raise UserError("pictures: name a kind, and a count above 0")
        self._kinds, self._count, self._seed = kinds, count, seed
        self._size, self._split = (side, height or side), "train" if split == "train" else "held_out"

    def load(self) -> Iterable[Task]:
        """The tasks, each with its picture in a data URL."""
        for number, kind in zip(range(self._count), itertools.cycle(self._kinds), strict=False):
            options = {"kind": kind, "split": self._split, "size": self._size}
            sample = synthetic_sample(self._seed, number, **options)
            content = [
                {"type": "image_url", "image_url": {"url": data_url(sample.image)}},
                {"type": "text", "text": sample.question},
            ]
            yield Task(
                f"{kind}-{self._split}-{number}",
                f"pictures/{kind}",
                ({"role": "user", "content": content},),
                _VERIFIERS[kind],
                metadata={"truth": _truth(sample)},
            )


def data_url(image: Image.Image) -> str:
    """An image as a PNG in a data URL, which a trajectory can keep."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _truth(sample: VisualSample) -> str | int | list[list[int]]:
    if _VERIFIERS[sample.kind] == "visual_words":
        return sample.answer
    return len(sample.boxes) if sample.kind == "count" else sample.boxes.tolist()
