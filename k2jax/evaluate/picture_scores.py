"""What an answer about a picture with exact labels is worth, by its kind: unlike a reward, it forgives other words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import re

import numpy as np

from k2jax.drawings.canvas import VisualSample
from k2jax.tasks.pictures.measures import box_f1, click_inside, point_f1, polygon_iou, text_similarity
from k2jax.tasks.pictures.verifier import MalformedAnswerError, read_click


def score_answer(sample: VisualSample, answer: str) -> float:
    """Score of an answer, between 0 and 1.

    Similarity of words, descriptions and code; whether a number, the value or name of a bar, or the cell of a table is
    exact; soft F1 of boxes and of points; overlap of an outline; whether a click hits its button.
    """
    return _SCORES[sample.kind](sample, answer)


def _similarity(sample: VisualSample, answer: str) -> float:
    return text_similarity(sample.answer, answer)


def _exact(sample: VisualSample, answer: str) -> float:
    return float(answer.strip() == sample.answer)


def _count(sample: VisualSample, answer: str) -> float:
    return float(answer.rpartition("=")[2].strip() == str(len(sample.boxes)))


def _boxes(sample: VisualSample, answer: str) -> float:
    return box_f1(sample.boxes, _of_numbers(answer, 4))


def _points(sample: VisualSample, answer: str) -> float:
    return point_f1(np.array(sample.label["points"], float), _of_numbers(answer, 2), size=sample.image.size)


def _outline(sample: VisualSample, answer: str) -> float:
    return polygon_iou(_rings(sample.label["polygons"]), _rings(_shapes(answer)))


def _click(sample: VisualSample, answer: str) -> float:
    try:
        return click_inside(sample.boxes, read_click(answer))
    except MalformedAnswerError:
        return 0.0


def _of_numbers(answer: str, numbers: int) -> np.ndarray:
    """Shapes of ``numbers`` numbers in an answer, float ``[n, numbers]``."""
    return np.array([shape for shape in _shapes(answer) if len(shape) == numbers], float).reshape(-1, numbers)


def _rings(rings: Iterable[Sequence[float]]) -> list[np.ndarray]:
    """Rings ``[n, 2]`` of three corners or more, of lists of coordinates."""
    return [np.reshape(ring, (-1, 2)).astype(float) for ring in rings if len(ring) >= 6 and len(ring) % 2 == 0]


def _shapes(answer: str) -> list[list[int]]:
    """The numbers of every bracket anywhere in an answer."""
    return [list(map(int, shape.split(","))) for shape in re.findall(r"\[([0-9]{1,4}(?:,[0-9]{1,4})*)\]", answer)]


_SCORES: dict[str, Callable[[VisualSample, str], float]] = {
    "read": _similarity,
    "describe": _similarity,
    "count": _count,
    "locate": _boxes,
    "point": _points,
    "outline": _outline,
    "chart": _exact,
    "table": _exact,
    "code": _similarity,
    "click": _click,
}
