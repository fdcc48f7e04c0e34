"""JSON as HTTP bodies need it, and server-sent events."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from k2jax.agents.api.api_error import ApiError, bad_request
from k2jax.files.bounded_json import TooManyValuesError, parse_bounded_json

DONE = "[DONE]"  # the event that ends a stream


class NamedEvent(NamedTuple):
    """A server-sent event with a name beside its data."""

    name: str
    data: dict[str, Any]


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parse_json(body: bytes | bytearray) -> Any:
    """Parses strict JSON: no NaN or infinity, and no string with an unpaired surrogate.

    Args:
        body: of a request; a bytearray is emptied, see ``parse_bounded_json``.

    Raises:
        ApiError: 400, the body is not strict JSON; 413, it has more values than are read.
    """
    may_have_surrogates = b"\\u" in body  # only an escape can spell an unpaired one
    try:
        value = parse_bounded_json(body)
        if may_have_surrogates:
            check_surrogates(value)
    except TooManyValuesError as error:
        raise ApiError(413, f"the request body is too large: {error}", code="request_too_large") from None
    except UnicodeEncodeError:
        message = "the request body contains an unpaired surrogate, which is not valid text"
        raise bad_request(None, message, "invalid_json") from None
    except ValueError as error:
        message = f"the request body is not JSON: {ascii(str(error))[1:-1][:200]}"
        raise bad_request(None, message, "invalid_json") from None
    return value


def check_surrogates(value: Any) -> None:
    """Raises UnicodeEncodeError where a string has an unpaired surrogate; copies one string at a time."""
    values = [value]
    while values:
        item = values.pop()
        if isinstance(item, str):
            item.encode()
        elif isinstance(item, dict):
            values += [*item, *item.values()]
        elif isinstance(item, list):
            values += item


def dump_json(value: Any) -> bytes:
    """Returns compact JSON in UTF-8."""
    return _ENCODER.encode(value).encode()


def encode_event(value: dict[str, Any] | NamedEvent | str) -> bytes:
    """Returns a server-sent event: an object as JSON, a string (such as ``DONE``) as it is."""
    if isinstance(value, NamedEvent):
        return b"event: " + value.name.encode() + b"\n" + encode_event(value.data)
    return b"data: " + (value.encode() if isinstance(value, str) else dump_json(value)) + b"\n\n"
