"""Parts of a message's content that hold coordinates: boxes, points and polygons, and the text that stands for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from k2jax.data.images.augment import THOUSAND, Augmentation
from k2jax.errors import UserError, abbreviate

LABELS = ("boxes", "points", "polygons")


def is_label(part: Any) -> bool:
    """Whether a part of content holds coordinates: ``{"type": "boxes", "boxes": [[left, top, right, bottom], …]}``.

    Points are ``[x, y]`` and polygons ``[x, y, x, y, …]``, all in thousandths of the picture's sides.
    """
    return isinstance(part, Mapping) and part.get("type") in LABELS


def label_points(part: Mapping[str, Any]) -> np.ndarray:
    """All points of a label, float ``[n, 2]``, in thousandths.

    Raises:
        UserError: it is malformed, or a coordinate lies outside the picture.
    """
    kind = part["type"]
    shapes = part.get(kind)
    if not isinstance(shapes, Sequence) or isinstance(shapes, str):
        raise UserError(f"{kind} must be a list, not {abbreviate(shapes)}")
    for shape in shapes:
        numbers = isinstance(shape, list | tuple) and all(type(x) in (int, float) for x in shape)
        if not numbers or not _sized(kind, len(shape)) or not all(0 <= x <= THOUSAND for x in shape):
            raise UserError(f"{kind} has {abbreviate(shape)}; coordinates are thousandths, {_FORMS[kind]}")
    return np.array([x for shape in shapes for x in shape], float).reshape(-1, 2)


def label_text(part: Mapping[str, Any], augmentation: Augmentation | None = None) -> str:
    """The shapes of a label one after the other, each in brackets; boxes from left to right, then from above."""
    kind = part["type"]
    shapes = [np.rint(np.asarray(shape, float)).astype(int) for shape in part[kind]]
    if augmentation is not None:
        shapes = [_transformed(kind, shape, augmentation) for shape in shapes]
    listed = [shape.tolist() for shape in shapes]
    if kind != "polygons":
        listed.sort()
    return "".join("[" + ",".join(map(str, shape)) + "]" for shape in listed)


def _transformed(kind: str, shape: np.ndarray, augmentation: Augmentation) -> np.ndarray:
    if kind == "boxes":
        return augmentation.boxes(shape)
    return augmentation.points(shape.reshape(-1, 2)).ravel()


_FORMS = {"boxes": "left, top, right, bottom", "points": "x, y", "polygons": "x, y, x, y, … of three points or more"}


def _sized(kind: str, count: int) -> bool:
    return count == 4 if kind == "boxes" else count == 2 if kind == "points" else count >= 6 and count % 2 == 0
