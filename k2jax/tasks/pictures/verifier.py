"""Rewards of visual tasks (Kimi K2.5, section 4.4.2): boxes, points, a polygon, words, counts, and a click.

Shapes of an answer are brackets with integers, thousandths of the picture's sides: ``[left,top,right,bottom]``,
``[x,y]`` or ``[x,y,x,y,x,y]``, one after the other. The truth is ``task.metadata["truth"]`` in the same numbers, as a
list of lists; of a click the box to hit, of words a text, of a count a number, and of a polygon its corners, or a list
of rings of corners: parts and holes. A malformed answer is worth 0, and ``info`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
import re
from typing import Any

import numpy as np

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.drawings.labels import THOUSAND
from k2jax.errors import UserError
from k2jax.tasks.pictures.measures import (
    SIGMA,
    box_f1,
    click_inside,
    count_closeness,
    point_f1,
    polygon_iou,
    text_similarity,
)
from k2jax.trajectory import Reward

TRUTH, SIZE, SIGMA_KEY = "truth", "size", "sigma"
"""Keys of a task's metadata."""
LONGEST = 10_000
"""Characters of an answer; a longer one is malformed, unless it is a text and the truth is half as long or longer."""
LONGEST_TRUTH = 30_000
"""Characters of a text that is the truth. Comparing two texts costs the product of their lengths."""
MOST_SHAPES = 500
"""Shapes of an answer; more are malformed. Assigning them costs the third power of their number."""
_CLICK = re.compile(r"\s*click\(\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*\)\s*")
_SHAPES = re.compile(r"\s*(?:\[\s*[0-9]{1,4}(?:\s*,\s*[0-9]{1,4})*\s*\][\s,]*)*")


class MalformedAnswerError(ValueError):
    """An answer that is not of the form that was asked for."""


def _shapes_of_truth(task: Task) -> str:
    """A control answer; so are the next ones."""
    return "".join(f"[{','.join(map(str, shape))}]" for shape in task.metadata[TRUTH])


def _polygon_of_truth(task: Task) -> str:
    rings = (",".join(str(int(number)) for number in ring.ravel()) for ring in _rings(task))
    return "".join(f"[{ring}]" for ring in rings)


def _click_on_truth(task: Task) -> str:
    return "click({},{})".format(*task.metadata[TRUTH][0][:2])


def _text_of_truth(task: Task) -> str:
    return str(task.metadata[TRUTH])


@judges_every_answer(_shapes_of_truth, worth=None)
def visual_boxes(task: Task, answer: str) -> Reward:
    """Soft F1 of boxes, see ``box_f1``."""
    return _reward(lambda: box_f1(_truth(task, 4), _boxes(answer)))


@judges_every_answer(_shapes_of_truth, worth=None)
def visual_points(task: Task, answer: str) -> Reward:
    """Soft F1 of points, see ``point_f1``.

    The metadata's ``size`` are the picture's width and height, without which it is a square, and ``sigma`` the
    deviation, by default ``SIGMA``.
    """
    sigma, size = task.metadata.get(SIGMA_KEY, SIGMA), task.metadata.get(SIZE, (1, 1))
    return _reward(lambda: point_f1(_truth(task, 2), read_shapes(answer, 2), sigma, size))


@judges_every_answer(_polygon_of_truth, worth=None)
def visual_polygon(task: Task, answer: str) -> Reward:
    """Overlap of a polygon with the true one, each of one ring or several; see ``polygon_iou``."""
    return _reward(lambda: polygon_iou(_rings(task), _polygon(answer)))


@judges_every_answer(_click_on_truth, worth=None)
def visual_click(task: Task, answer: str) -> Reward:
    """1 for the action ``click(x,y)`` inside the true box or on its edge, else 0."""
    return _reward(lambda: click_inside(_truth(task, 4), read_click(answer)))


@judges_every_answer(_text_of_truth, worth=None)
def visual_words(task: Task, answer: str) -> Reward:
    """Similarity of texts, see ``text_similarity``; blanks around them do not count.

    Raises:
        UserError: the truth is longer than texts that are compared.
    """
    truth = task.metadata[TRUTH].strip()
    if len(truth) > LONGEST_TRUTH:
        raise UserError(
            f"the truth of the task {task.id!r} has {len(truth):,} characters; visual_words compares "
            f"{LONGEST_TRUTH:,} at most, so divide the document"
        )
    return _reward(lambda: text_similarity(truth, _short(answer.strip(), max(LONGEST, 2 * len(truth)))))


@judges_every_answer(_text_of_truth, worth=None)
def visual_count(task: Task, answer: str) -> Reward:
    """How near the number of an answer is, which may stand behind a tally and ``=``; see ``count_closeness``."""
    return _reward(lambda: count_closeness(task.metadata[TRUTH], _number(answer)))


def read_shapes(answer: str, numbers: int) -> np.ndarray:
    """Shapes of an answer, float ``[n, numbers]``.

    Raises:
        MalformedAnswerError: there is anything else, or a shape with more or fewer numbers, or one outside the picture.
    """
    shapes = _read(answer)
    if any(len(shape) != numbers for shape in shapes):
        raise MalformedAnswerError(f"a shape has not {numbers} numbers")
    return np.array(shapes, float).reshape(-1, numbers)


def read_click(answer: str) -> np.ndarray:
    """The point of an action ``click(x,y)``, float ``[2]``.

    Raises:
        MalformedAnswerError: there is anything else, or the point is outside the picture.
    """
    found = _CLICK.fullmatch(_short(answer))
    if not found:
        raise MalformedAnswerError("it is not an action click(x,y) alone")
    point = np.array(found.groups(), float)
    if (point > THOUSAND).any():
        raise MalformedAnswerError(f"a coordinate is above {THOUSAND}")
    return point


def _boxes(answer: str) -> np.ndarray:
    boxes = read_shapes(answer, 4)
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise MalformedAnswerError("a box ends before it begins")
    return boxes


def _polygon(answer: str) -> list[np.ndarray]:
    shapes = _read(answer)
    if not shapes or any(len(shape) < 6 or len(shape) % 2 for shape in shapes):
        raise MalformedAnswerError("it is not rings of three corners or more")
    return [np.array(shape, float).reshape(-1, 2) for shape in shapes]


def _read(answer: str) -> list[list[int]]:
    if not _SHAPES.fullmatch(_short(answer)):
        raise MalformedAnswerError("it is not shapes in brackets alone")
    shapes = [list(map(int, re.findall("[0-9]+", shape))) for shape in re.findall(r"\[[^]]*\]", answer)]
    if len(shapes) > MOST_SHAPES:
        raise MalformedAnswerError(f"it has more than {MOST_SHAPES} shapes")
    if any(number > THOUSAND for shape in shapes for number in shape):
        raise MalformedAnswerError(f"a coordinate is above {THOUSAND}")
    return shapes


def _number(answer: str) -> int:
    found = re.fullmatch(r"\s*(?:[0-9/]*=)?\s*([0-9]{1,6})\s*", _short(answer))
    if found is None:
        raise MalformedAnswerError("it is no number, alone or behind a tally and =")
    return int(found[1])


def _short(answer: str, longest: int = LONGEST) -> str:
    if len(answer) > longest:
        raise MalformedAnswerError(f"it has more than {longest} characters")
    return answer


def _truth(task: Task, numbers: int) -> np.ndarray:
    return np.array(task.metadata[TRUTH], float).reshape(-1, numbers)


def _rings(task: Task) -> list[np.ndarray]:
    truth = task.metadata[TRUTH]
    is_one = not truth or np.ndim(truth[0]) == 1
    return [np.array(ring, float).reshape(-1, 2) for ring in ([truth] if is_one else truth)]


def _reward(score: Callable[[], float]) -> Reward:
    info: dict[str, Any] = {}
    try:
        value = score()
    except MalformedAnswerError as error:
        value, info = 0.0, {"malformed": str(error)}
    return Reward(value, info=info)
