"""Values of somebody else's JSON objects: each is read as one kind of value within bounds, and none is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.whole import read_whole

_REQUIRED: Any = object()
MOST_BYTES = 100_000_000
MOST_VALUES = 5_000_000
"""Of an index or a header, which name every tensor; those of Kimi K2 have half a million."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Raises:
        UserError: it cannot be read, or is none.
    """
    try:
        values = parse_bounded_json(read_whole(path, MOST_BYTES), MOST_VALUES)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a Hugging Face folder") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; fetch it again") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: not an object; fetch it again")
    return values


class Values:
    """A JSON object that remembers which of its keys were read.

    A value of another kind or out of bounds, and a missing one without a default, raise UserError.

    Args:
        values: the object.
        place: where it lies, in errors; empty for a whole file.
    """

    def __init__(self, values: dict[str, Any], place: str = ""):
        self._values, self._place = values, f" of {place}" if place else ""
        self._read: set[str] = set()

    def raw(self, key: str, default: Any = None) -> Any:
        """Returns a value of any kind, for a check of its own."""
        self._read.add(key)
        return self._values.get(key, default)

    def peek(self, key: str) -> Any:
        """Returns a value of any kind without counting it as read; None if it is missing."""
        return self._values.get(key)

    def whole(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> Any:
        """Returns a whole number from ``low`` to ``high``; null counts as missing where the default is None."""
        value = self._value(key, default)
        if value is not default and (type(value) is not int or not low <= value <= high):
            raise UserError(f"{key}{self._place} must be a whole number of {low} to {high}, not {abbreviate(value)}")
        return value

    def number(self, key: str, low: float, high: float, default: Any = _REQUIRED) -> Any:
        """Returns a finite number from ``low`` to ``high`` as a float; null as in ``whole``."""
        value = self._value(key, default)
        if value is not default and (type(value) not in (int, float) or not low <= value <= high):
            raise UserError(f"{key}{self._place} must be a number of {low:g} to {high:g}, not {abbreviate(value)}")
        return default if value is default else float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """Returns true or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise UserError(f"{key}{self._place} must be true or false, not {abbreviate(value)}")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """Returns a text."""
        value = self._value(key, default)
        if value is not default and not isinstance(value, str):
            raise UserError(f"{key}{self._place} must be a text, not {abbreviate(value)}")
        return value

    def group(self, key: str) -> Values | None:
        """Returns an object within this one; None if it is missing, null or empty."""
        value = self._value(key, None)
        if value is not None and not isinstance(value, dict):
            raise UserError(f"{key}{self._place} must be an object, not {abbreviate(value)}")
        return Values(value, key) if value else None

    def fixed(self, key: str, supported: Any) -> None:
        """Reads a key that, where it is present, must have the one value that is supported."""
        value = self.raw(key, supported)
        if type(value) is not type(supported) or value != supported:
            raise UserError(f"{key} {abbreviate(value)}{self._place} is not supported, only {supported!r} is")

    def without_effect(self, keys: Sequence[str]) -> None:
        """Counts keys as read that change nothing in what is computed."""
        self._read.update(keys)

    def unread(self) -> Iterator[str]:
        """Yields the keys that nothing has read, but private ones, in order."""
        return (key for key in sorted(self._values) if key not in self._read and not key.startswith("_"))

    def __eq__(self, other: object) -> bool:
        """Whether two objects have the same keys and values."""
        return isinstance(other, Values) and self._values == other._values

    __hash__ = None

    def _value(self, key: str, default: Any) -> Any:
        value = self.raw(key, default)
        if value is _REQUIRED:
            raise UserError(f"it lacks {key!r}{self._place}")
        return value
