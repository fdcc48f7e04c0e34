"""Questions about pictures that lie as files in a sandbox, for a model with an interpreter of Python.

Without ``show`` the prompt is text alone: the interpreter is how such a model sees (zero-vision fine-tuning, Kimi K2.5,
section 2.2). With ``show`` the picture is in the prompt too, for models that see and may look closer. Pixels alone
answer all questions, so that there are no words to read; numbers of pixels are asked for instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools
from typing import Any, NamedTuple
import zlib

import numpy as np
from PIL import Image

from k2jax.agents.environments.files import FILES
from k2jax.agents.split import Split
from k2jax.agents.task import Budget, Task
from k2jax.drawings.canvas import (
    COLOURS,
    LEAST_SIDE,
    DrawnShape,
    cells_of,
    draw_shapes,
    kind_of_shape,
    max_shapes,
)
from k2jax.drawings.synthetic import synthetic_sample
from k2jax.errors import UserError, nearest
from k2jax.tasks.pictures.dataset import VERIFIERS, picture_part, png, truth_of
from k2jax.tasks.pictures.verifier import TRUTH

PICTURE = "picture_1.png"
"""Name of the picture in the sandbox's folder."""
TOOL = "python packages=pillow+numpy"
"""The toolset of the tasks."""
_BOX = "box [left,top,right,bottom] in thousandths of the picture's sides"
_NUMBER = "Answer with the number alone."
_FORMS = {
    "count": _NUMBER,
    "locate": f"For each, answer with its {_BOX}, and with nothing else.",
    "describe": f"For each, answer with its colour, its shape and its {_BOX}, such as red circle[0,0,250,250], and "
    "with nothing else, in the order of the cells of a grid of {across} x {down}, row by row.",
    "area": _NUMBER,
    "crop": _NUMBER,
}
KINDS = tuple(_FORMS)


class PictureQuestion(NamedTuple):
    """A picture and a question that its pixels answer.

    Attributes:
        image: in RGB.
        text: the question.
        truth: a number, boxes in thousandths, or a text, as the verifier reads it.
    """

    image: Image.Image
    text: str
    truth: str | int | list[list[int]]


class PictureTools:
    """Drawn pictures and questions of some kinds, in turn; a task is a function of seed, kind, number and split."""

    def __init__(
        self,
        kinds: tuple[str, ...] = KINDS,
        show: bool = False,
        count: int = 2000,
        seed: int = 0,
        *,
        side: int = 112,
        height: int = 0,
        steps: int = 10,
        split: Split = "train",
    ):
        """A set of tasks.

        Args:
            kinds: of ``count``, ``locate``, ``describe``, ``area`` and ``crop``.
            show: whether the prompt shows the picture too; else it is text alone.
            count: number of tasks.
            seed: of the drawings.
            side: width of the pictures [pixels], at least 64.
            height: of the pictures [pixels]; 0 is their width.
            steps: of an episode, see ``Budget``.
            split: ``train`` or ``test``, whose drawings are others.

        Raises:
            UserError: a kind is unknown, there is nothing to draw, or a side is too short.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f"picture_tools: no kind {kind!r}{nearest(kind, KINDS)}")
        if not kinds or count < 1:
            raise UserError("picture_tools: name a kind, and a count above 0")
        if min(side, height or side) < LEAST_SIDE:
            raise UserError(
                f"picture_tools: pictures of {side} x {height or side} pixels; {LEAST_SIDE} a side is least"
            )
        self._kinds, self._show, self._count, self._seed = kinds, show, count, seed
        self._size, self._steps, self._split = (side, height or side), steps, split

    def load(self) -> Iterator[Task]:
        """The tasks, each with its picture among the files of its sandbox."""
        for number, kind in zip(range(self._count), itertools.cycle(self._kinds), strict=False):
            question = picture_question(self._seed, number, kind=kind, split=self._split, size=self._size)
            yield self._task(f"{kind}-{self._split}-{number}", kind, question)

    def _task(self, name: str, kind: str, question: PictureQuestion) -> Task:
        (width, height), (across, down) = self._size, cells_of(self._size)
        form = _FORMS[kind].format(across=across, down=down)
        prompt = f"The picture {PICTURE} has {width} x {height} pixels. {question.text} {form}"
        content: Any = [picture_part(question.image), {"type": "text", "text": prompt}] if self._show else prompt
        return Task(
            id=name,
            domain=f"picture_tools/{kind}",
            instruction=({"role": "user", "content": content},),
            verifier=VERIFIERS.get(kind, "visual_count"),
            environment="named_files",
            tools=(TOOL,),
            budget=Budget(steps=self._steps),
            metadata={TRUTH: question.truth, FILES: {PICTURE: {"base64": png(question.image)}}},
        )


def picture_question(seed: int, index: int, *, kind: str, split: Split, size: tuple[int, int]) -> PictureQuestion:
    """Draws a picture with a question.

    Args:
        seed: of the data set.
        index: number of the question.
        kind: of ``KINDS``.
        split: ``train`` or ``test``.
        size: width and height [pixels].
    """
    if kind in _MEASURES:
        rng = np.random.default_rng([seed, index, zlib.crc32(f"{kind} {split}".encode())])
        kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, max_shapes(size) + 1))]
        image, shapes = draw_shapes(rng, size, kinds)
        return _MEASURES[kind](rng, image, shapes)
    sample = synthetic_sample(seed, index, kind=kind, split="train" if split == "train" else "held_out", size=size)
    return PictureQuestion(sample.image, sample.question, truth_of(sample))


def kind_of(task: Task) -> str:
    """The kind of a task's question."""
    return task.domain.rpartition("/")[2]


def question_of(task: Task) -> str:
    """The text of a task's prompt."""
    content = task.instruction[0]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def _area(rng: np.random.Generator, image: Image.Image, shapes: list[DrawnShape]) -> PictureQuestion:
    """Pixels of all shapes of a kind."""
    chosen = shapes[rng.integers(len(shapes))]
    alike = [each.box for each in shapes if (each.shape, each.colour) == (chosen.shape, chosen.colour)]
    boxes = [(left, top, right + 1, bottom + 1) for left, top, right, bottom in alike]
    text = f"How many pixels do the {chosen.colour} {chosen.shape}s cover, all together?"
    return PictureQuestion(image, text, sum(_pixels(image, box, chosen.colour) for box in boxes))


def _crop(rng: np.random.Generator, image: Image.Image, shapes: list[DrawnShape]) -> PictureQuestion:
    """Pixels of a colour in a part of the picture, which holds the middle of a shape of this colour."""
    chosen = shapes[rng.integers(len(shapes))]
    left, top, right, bottom = chosen.box
    x, y = (left + right) // 2, (top + bottom) // 2
    box = tuple(map(int, (*rng.integers(0, (x, y)), *rng.integers((x + 1, y + 1), np.array(image.size) + 1))))
    where = f"from column {box[0]} and row {box[1]} to before column {box[2]} and row {box[3]}, both counted from 0"
    text = f"How many pixels are {chosen.colour} in the part {where}?"
    return PictureQuestion(image, text, _pixels(image, box, chosen.colour))


_MEASURES: dict[str, Callable[..., PictureQuestion]] = {"area": _area, "crop": _crop}


def _pixels(image: Image.Image, box: tuple[int, ...], colour: str) -> int:
    """Pixels of a colour in a box, as Pillow crops it."""
    return int((np.asarray(image.crop(box)) == COLOURS[colour]).all(-1).sum())
