"""JSON as HTTP bodies need it, and server-sent events."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from k2jax.api.errors import bad_request

DONE = "[DONE]"  # the event that ends a stream


class NamedEvent(NamedTuple):
    """A server-sent event with a name beside its data."""

    name: str
    data: dict[str, Any]


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parse_json(body: bytes) -> Any:
    """Parses strict JSON: no NaN or infinity, and no string with an unpaired surrogate.

    Raises:
        ApiError: the body is not strict JSON.
    """
    try:
        value = json.loads(body, parse_constant=_reject_constant)
        if b"\\u" in body:  # only an escape can spell an unpaired surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "the request body contains an unpaired surrogate, which is not valid text"
        raise bad_request(None, message, "invalid_json") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"the request body is not JSON: {ascii(reason)[1:-1][:200]}"
        raise bad_request(None, message, "invalid_json") from None
    return value


def dump_json(value: Any) -> bytes:
    """Returns compact JSON in UTF-8."""
    return _ENCODER.encode(value).encode()


def encode_event(value: dict[str, Any] | NamedEvent | str) -> bytes:
    """Returns a server-sent event: an object as JSON, a string (such as ``DONE``) as it is."""
    if isinstance(value, NamedEvent):
        return b"event: " + value.name.encode() + b"\n" + encode_event(value.data)
    return b"data: " + (value.encode() if isinstance(value, str) else dump_json(value)) + b"\n\n"


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
