"""Typed access to the fields of a JSON request body; a field that the server does not know is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.agents.api.api_error import ApiError, bad_request, unsupported
from k2jax.errors import abbreviate

_LONGEST_NAME = 80  # characters of a client's field name that an error repeats
_MAX_NAMES = 20  # fields that were passed over and are named


class Fields:
    """A JSON object whose fields are read and removed; ``null`` is the same as absent.

    Attributes:
        lenient: whether fields that nobody reads are passed over.
    """

    def __init__(self, body: Any, name: str = "the request body", lenient: bool = False):
        """Wraps a parsed object; ``name`` identifies it in errors.

        Raises:
            ApiError: ``body`` is not an object.
        """
        self.lenient = lenient
        if not isinstance(body, dict):
            raise bad_request(None, f"{name} must be a JSON object, not {abbreviate(body)}")
        self._unread: dict[str, Any] = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a field of any type."""
        return self._unread.pop(name, default)

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a string; the field is required if there is no default."""
        return self._take_typed(name, default, str, "a string")

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a boolean."""
        return self._take_typed(name, default, bool, "true or false")

    def integer(self, name: str, default: int | None, low: int | None = None, high: int | None = None) -> int | None:
        """Returns an integer between ``low`` and ``high``, both included."""
        value = self._unread.pop(name, default)
        if value is default:
            return value
        if type(value) is not int:
            raise invalid_value(name, "an integer", value)
        if (low is not None and value < low) or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise invalid_value(name, limits, value)
        return value

    def number(self, name: str, default: float) -> float:
        """Returns a number; the caller checks its range."""
        value = self._unread.pop(name, default)
        if type(value) not in (int, float):
            raise invalid_value(name, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise invalid_value(name, "a number of reasonable size", value) from None

    def finish(self, ignored: frozenset[str], neutral: Mapping[str, Any]) -> tuple[str, ...]:
        """Rejects the fields that were not read, or passes over them in a body that is read leniently.

        Args:
            ignored: fields that cannot change a response.
            neutral: unsupported fields, each with the value that has no effect; None if there is no such value.

        Returns:
            Names of the first fields that were passed over.

        Raises:
            ApiError: a field is in neither, or does not have its neutral value.
        """
        passed = []
        for name, value in self._unread.items():
            if value == neutral[name] if name in neutral else name in ignored:
                continue
            shown = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
            if self.lenient:
                passed.append(shown)
            elif name in neutral:
                raise unsupported(name)
            else:
                raise bad_request(shown, f"unrecognized request argument: {shown}", "unknown_parameter")
        return tuple(passed[:_MAX_NAMES])

    def _take_typed(self, name: str, default: Any, kind: type, expected: str) -> Any:
        value = self._unread.pop(name, default)
        if value is None:
            raise bad_request(name, f"{name} is required", "missing_parameter")
        if type(value) is not kind:
            raise invalid_value(name, expected, value)
        return value


def invalid_value(name: str, expected: str, value: Any) -> ApiError:
    """Returns the error for a field of the wrong type or range."""
    return bad_request(name, f"{name} must be {expected}, not {abbreviate(value)}")
