"""Rewards of visual tasks (Kimi K2.5, section 4.4.2): boxes, points, a polygon, words, counts, and a click.

Shapes of an answer are brackets with integers, thousandths of the picture's sides: ``[left,top,right,bottom]``,
``[x,y]`` or ``[x,y,x,y,x,y]``, one after the other. The truth is ``task.metadata["truth"]`` in the same numbers, as a
list of lists; of a click the box to hit, of words a text, of a count a number. A malformed answer is worth 0, and
``info`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
import re
from typing import Any

import numpy as np

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.drawings.labels import THOUSAND
from k2jax.trajectory import Reward

TRUTH = "truth"
"""Key of a task's metadata; coordinates are thousandths."""
LONGEST = 10_000
"""Characters of an answer; a longer one is malformed. Comparing two texts costs the product of their lengths."""
MOST_SHAPES = 500
"""Shapes of an answer; more are malformed. Assigning them costs the third power of their number."""
SIGMA = 50.0
"""Standard deviation of the weight of a point's distance [thousandths]."""
GRID = 256
"""Cells of a picture's side, on which polygons are compared."""
_CLICK = re.compile(r"\s*click\(\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*\)\s*")
_SHAPES = re.compile(r"\s*(?:\[\s*[0-9]{1,4}(?:\s*,\s*[0-9]{1,4})*\s*\][\s,]*)*")


class MalformedAnswerError(ValueError):
    """An answer that is not of the form that was asked for."""


def _shapes_of_truth(task: Task) -> str:
    """A control answer; so are the next ones."""
    return "".join(f"[{','.join(map(str, shape))}]" for shape in task.metadata[TRUTH])


def _polygon_of_truth(task: Task) -> str:
    return f"[{','.join(str(number) for corner in task.metadata[TRUTH] for number in corner)}]"


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
    """Soft F1 of points, see ``point_f1``."""
    return _reward(lambda: point_f1(_truth(task, 2), read_shapes(answer, 2)))


@judges_every_answer(_polygon_of_truth, worth=None)
def visual_polygon(task: Task, answer: str) -> Reward:
    """Overlap of one polygon with the true one, whose corners are the truth; see ``polygon_iou``."""
    return _reward(lambda: polygon_iou(_truth(task, 2), _polygon(answer)))


@judges_every_answer(_click_on_truth, worth=None)
def visual_click(task: Task, answer: str) -> Reward:
    """1 for the action ``click(x,y)`` inside the true box or on its edge, else 0."""
    return _reward(lambda: click_inside(_truth(task, 4), read_click(answer)))


@judges_every_answer(_text_of_truth, worth=None)
def visual_words(task: Task, answer: str) -> Reward:
    """Similarity of texts, see ``text_similarity``."""
    return _reward(lambda: text_similarity(task.metadata[TRUTH], _short(answer).strip()))


@judges_every_answer(_text_of_truth, worth=None)
def visual_count(task: Task, answer: str) -> Reward:
    """How near the number of an answer is, which may stand behind a tally and ``=``; see ``count_closeness``."""
    return _reward(lambda: count_closeness(task.metadata[TRUTH], _number(answer)))


def box_f1(wanted: np.ndarray, given: np.ndarray) -> float:
    """Twice the overlaps (IoU) of boxes under their best assignment, over the number of boxes of both lists.

    Args:
        wanted: ``[n, 4]`` left, top, right and bottom.
        given: ``[m, 4]``.

    Returns:
        0 to 1; 1 of two empty lists.
    """
    low = np.maximum(wanted[:, None, :2], given[None, :, :2])
    high = np.minimum(wanted[:, None, 2:], given[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(-1)
    areas = [np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(-1) for boxes in (wanted, given)]
    union = areas[0][:, None] + areas[1][None] - shared
    return _assigned(shared / np.maximum(union, 1e-9))


def point_f1(wanted: np.ndarray, given: np.ndarray, sigma: float = SIGMA) -> float:
    """Twice the weights exp(-d^2 / (2 sigma^2)) of points at distance d under their best assignment, over both numbers.

    Args:
        wanted: ``[n, 2]`` x and y.
        given: ``[m, 2]``.
        sigma: in the points' unit.

    Returns:
        0 to 1; 1 of two empty lists.
    """
    squares = ((wanted[:, None] - given[None]) ** 2).sum(-1)
    return _assigned(np.exp(-squares / (2 * sigma**2)))


def click_inside(boxes: np.ndarray, point: np.ndarray) -> float:
    """1 where a point ``[2]`` is inside one of some boxes ``[n, 4]`` or on its edge, else 0."""
    return float(((boxes[:, :2] <= point) & (point <= boxes[:, 2:])).all(-1).any())


def polygon_iou(wanted: np.ndarray, given: np.ndarray, side: int = GRID) -> float:
    """Intersection over union of two polygons ``[n, 2]``, of the centres of ``side`` x ``side`` cells of the picture.

    A polygon that crosses itself holds what an odd number of its edges lies to the right of; one of fewer than three
    corners holds nothing.
    """
    masks = [polygon_mask(corners, side) for corners in (wanted, given)]
    union = (masks[0] | masks[1]).sum()
    return float((masks[0] & masks[1]).sum() / union) if union else 0.0


def polygon_mask(corners: np.ndarray, side: int = GRID) -> np.ndarray:
    """Bool ``[side, side]``, the cells (y, x) whose centres a polygon ``[n, 2]`` in thousandths holds."""
    mask = np.zeros((side, side), bool)
    centre = (np.arange(side) + 0.5) * THOUSAND / side
    if len(corners) < 3:
        return mask
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        crossed = (y0 <= centre) != (y1 <= centre)
        if crossed.any():
            edge = x0 + (centre[crossed] - y0) * ((x1 - x0) / (y1 - y0))
            mask[crossed] ^= centre[None] < edge[:, None]
    return mask


def text_similarity(wanted: str, given: str) -> float:
    """1 - edit distance / length of the longer text, 0 to 1."""
    return 1 - edit_distance(wanted, given) / max(len(wanted), len(given), 1)


def count_closeness(wanted: int, given: int) -> float:
    """1 less the difference over max(wanted, 1), at least 0."""
    return max(0.0, 1 - abs(wanted - given) / max(wanted, 1))


def edit_distance(a: str, b: str) -> int:
    """Fewest insertions, deletions and replacements of characters that lead from one text to the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


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


def _polygon(answer: str) -> np.ndarray:
    shapes = _read(answer)
    if len(shapes) != 1 or len(shapes[0]) < 6 or len(shapes[0]) % 2:
        raise MalformedAnswerError("it is not one polygon of three corners or more")
    return np.array(shapes[0], float).reshape(-1, 2)


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


def _short(answer: str) -> str:
    if len(answer) > LONGEST:
        raise MalformedAnswerError(f"it has more than {LONGEST} characters")
    return answer


def _truth(task: Task, numbers: int) -> np.ndarray:
    return np.array(task.metadata[TRUTH], float).reshape(-1, numbers)


def _assigned(weight_NM: np.ndarray) -> float:
    if not sum(weight_NM.shape):
        return 1.0
    from scipy.optimize import linear_sum_assignment  # takes as long to import as all the rest of a process

    return float(2 * weight_NM[linear_sum_assignment(-weight_NM)].sum() / sum(weight_NM.shape))


def _reward(score: Callable[[], float]) -> Reward:
    info: dict[str, Any] = {}
    try:
        value = score()
    except MalformedAnswerError as error:
        value, info = 0.0, {"malformed": str(error)}
    return Reward(value, info=info)
