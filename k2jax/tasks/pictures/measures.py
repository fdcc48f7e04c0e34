"""How near an answer about a picture is to the truth: measures between 0 and 1 of boxes, points, polygons, texts."""

from __future__ import annotations

from collections.abc import Sequence
import unicodedata

import numpy as np

from k2jax.drawings.labels import THOUSAND

SIGMA = 50.0
"""Standard deviation of the weight of a point's distance [thousandths of the root of the picture's area]."""
Rings = np.ndarray | Sequence[np.ndarray]
"""A polygon ``[n, 2]`` or several: parts and holes, of which the even-odd rule makes one shape."""


def box_f1(truth: np.ndarray, answer: np.ndarray) -> float:
    """Twice the overlaps (IoU) of boxes under their best assignment, over the number of boxes of both lists.

    A box without area is as wide or high as one thousandth, so that equal ones overlap wholly.

    Args:
        truth: ``[n, 4]`` left, top, right and bottom.
        answer: ``[m, 4]``.

    Returns:
        0 to 1; 1 of two empty lists.
    """
    (low_a, high_a), (low_b, high_b) = (_extent(boxes) for boxes in (truth, answer))
    shared = np.minimum(high_a[:, None], high_b[None]) - np.maximum(low_a[:, None], low_b[None])
    overlap = np.maximum(shared, 0).prod(-1)
    union = (high_a - low_a).prod(-1)[:, None] + (high_b - low_b).prod(-1)[None] - overlap
    return _assigned(overlap / union)


def point_f1(truth: np.ndarray, answer: np.ndarray, sigma: float = SIGMA, size: Sequence[float] = (1, 1)) -> float:
    """Twice the weights exp(-d^2 / (2 sigma^2)) of points at distance d under their best assignment, over both numbers.

    A distance is in thousandths of the root of the picture's area: the same number of pixels along and across.

    Args:
        truth: ``[n, 2]`` x and y, thousandths of the picture's width and height.
        answer: ``[m, 2]``.
        sigma: thousandths of the root of the area.
        size: width and height of the picture, in any unit; only their ratio matters.

    Returns:
        0 to 1; 1 of two empty lists.
    """
    ratio = np.sqrt(size[0] / size[1])
    squares = (((truth[:, None] - answer[None]) * np.array([ratio, 1 / ratio])) ** 2).sum(-1)
    return _assigned(np.exp(-squares / (2 * sigma**2)))


def click_inside(boxes: np.ndarray, point: np.ndarray) -> float:
    """1 where a point ``[2]`` is inside one of some boxes ``[n, 4]`` or on its edge, else 0."""
    return float(((boxes[:, :2] <= point) & (point <= boxes[:, 2:])).all(-1).any())


def polygon_iou(truth: Rings, answer: Rings) -> float:
    """Intersection over union of two shapes of rings, each ``[n, 2]`` in thousandths.

    A shape holds what an odd number of its edges lies to the right of: a ring inside another one is a hole. A ring of
    fewer than three corners holds nothing. Areas are exact for corners in whole thousandths, but for what lies between
    two of them around a crossing of edges. Of shapes without area, those with the same corners overlap wholly.
    """
    rings = [[shape] if isinstance(shape, np.ndarray) else list(shape) for shape in (truth, answer)]
    rings = [[ring for ring in shape if len(ring) >= 3] for shape in rings]
    (x0, y0, x1, y1), owner = _edges(rings)
    levels = np.unique(np.concatenate([np.arange(THOUSAND + 1.0), y0]))
    middle_R = (levels[1:] + levels[:-1]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        x_RE = x0 + (middle_R[:, None] - y0) * ((x1 - x0) / (y1 - y0))
    crossed_RE = (y0 <= middle_R[:, None]) != (y1 <= middle_R[:, None])
    x_RE = np.where(crossed_RE, x_RE, np.inf)
    order_RE = np.argsort(x_RE, axis=1)
    x_RE, crossed_RE = (np.take_along_axis(values, order_RE, 1) for values in (x_RE, crossed_RE))
    x_RE[~crossed_RE] = 0  # the last ones of a row, where all shapes have ended
    inside = [np.cumsum(crossed_RE & (owner[order_RE] == shape), axis=1)[:, :-1] % 2 == 1 for shape in (0, 1)]
    width_RE = np.diff(x_RE, axis=1)
    areas = [(np.where(cells, width_RE, 0).sum(1) * np.diff(levels)).sum() for cells in (
        inside[0] & inside[1], inside[0] | inside[1])]  # fmt: skip
    return float(areas[0] / areas[1]) if areas[1] > 0 else _same_corners(*rings)


def text_similarity(truth: str, answer: str) -> float:
    """1 - edit distance / length of the longer text, 0 to 1; characters are compared in Unicode's form NFC."""
    truth, answer = (unicodedata.normalize("NFC", text) for text in (truth, answer))
    return 1 - edit_distance(truth, answer) / max(len(truth), len(answer), 1)


def count_closeness(truth: int, answer: int) -> float:
    """1 less the difference over max(truth, 1), at least 0."""
    return max(0.0, 1 - abs(truth - answer) / max(truth, 1))


def edit_distance(a: str, b: str) -> int:
    """Fewest insertions, deletions and replacements of characters that lead from one text to the other.

    The bit-parallel algorithm of Myers (1999) as Hyyrö (2001) has it: a column of the table of distances is two
    integers of as many bits as the shorter text has characters, +1 and -1 between one entry and the next. Texts of
    10,000 characters take a fifth of a second.
    """
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return len(a)
    mask, last = (1 << len(b)) - 1, 1 << (len(b) - 1)
    places: dict[str, int] = {}
    for place, character in enumerate(b):
        places[character] = places.get(character, 0) | 1 << place
    rises, falls, distance = mask, 0, len(b)
    for character in a:
        equal = places.get(character, 0)
        diagonal = ((((equal & rises) + rises) ^ rises) | equal | falls) & mask
        right, left = falls | ~(diagonal | rises) & mask, rises & diagonal
        distance += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & mask, (left << 1) & mask
        rises, falls = left | ~(equal | falls | right) & mask, right & (equal | falls)
    return distance


def _extent(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = boxes[:, :2], boxes[:, 2:]
    return low, np.where(high > low, high, low + 1)


def _edges(shapes: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Edges (x0, y0, x1, y1) ``[4, E]`` of all rings, and to which shape each belongs ``[E]``."""
    rings = [(ring, number) for number, shape in enumerate(shapes) for ring in shape]
    edges = [np.concatenate([ring, np.roll(ring, -1, axis=0)], axis=1) for ring, _ in rings]
    owner = [np.full(len(ring), number) for ring, number in rings]
    return np.concatenate([np.zeros((0, 4)), *edges]).T, np.concatenate([np.zeros(0, int), *owner])


def _same_corners(truth: Sequence[np.ndarray], answer: Sequence[np.ndarray]) -> float:
    corners = [sorted(sorted(map(tuple, ring.tolist())) for ring in shape) for shape in (truth, answer)]
    return float(bool(corners[0]) and corners[0] == corners[1])


def _assigned(weight_NM: np.ndarray) -> float:
    if not sum(weight_NM.shape):
        return 1.0
    from scipy.optimize import linear_sum_assignment  # takes as long to import as all the rest of a process

    return float(2 * weight_NM[linear_sum_assignment(-weight_NM)].sum() / sum(weight_NM.shape))
