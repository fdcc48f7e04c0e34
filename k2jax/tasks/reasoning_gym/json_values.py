"""Python values that JSON has not, as JSON and back: tuples, fractions, and dictionaries whose keys are no text."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

_TUPLE, _FRACTION, _ITEMS = "!tuple", "!fraction", "!items"


def to_json_values(value: Any) -> Any:
    """The value with tuples as ``{"!tuple": [...]}`` and such dictionaries as ``{"!items": [[key, value], ...]}``.

    A fraction is ``{"!fraction": "1/3"}``.

    Raises:
        TypeError: it holds something else that JSON does not have.
    """
    if isinstance(value, tuple):
        return {_TUPLE: [to_json_values(item) for item in value]}
    if isinstance(value, list):
        return [to_json_values(item) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str and key not in (_TUPLE, _FRACTION, _ITEMS) for key in value):
            return {key: to_json_values(item) for key, item in value.items()}
        return {_ITEMS: [[to_json_values(key), to_json_values(item)] for key, item in value.items()]}
    if isinstance(value, Fraction):
        return {_FRACTION: str(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def from_json_values(value: Any) -> Any:
    """The inverse of ``to_json_values``."""
    if isinstance(value, list):
        return [from_json_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TUPLE}:
        return tuple(from_json_values(item) for item in value[_TUPLE])
    if value.keys() == {_FRACTION}:
        return Fraction(value[_FRACTION])
    if value.keys() == {_ITEMS}:
        return {from_json_values(key): from_json_values(item) for key, item in value[_ITEMS]}
    return {key: from_json_values(item) for key, item in value.items()}
