"""JSON values and NumPy arrays as bytes: what one process of a run says to another. Nothing is unpickled.

A message is the length of its JSON, the JSON, in which arrays are named by their numbers, and the arrays one behind
another. Text, numbers and lists come back as they were; tuples become lists.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np

from k2jax.files.bounded_json import parse_bounded_json

MOST_VALUES = 1 << 24
"""JSON values of a message at most."""
_ARRAY, _BYTES, _FLOAT = "$array", "$bytes", "$float"
_LENGTH = struct.Struct("<Q")
_DTYPES = frozenset(
    ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"],
)


def encode(value: Any) -> bytes:
    """Bytes of which ``decode`` makes an equal value.

    Args:
        value: dicts with text keys, lists and tuples of JSON scalars, bytes and NumPy arrays of numbers.

    Raises:
        TypeError: a value or a key of another kind.
    """
    parts: list[bytes] = []
    shapes: list[list[Any]] = []
    text = json.dumps([_plain(value, parts, shapes), shapes], separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *parts])


def decode(data: bytes) -> Any:
    """The value that ``encode`` was given.

    Raises:
        ValueError: the bytes are no message.
    """
    if len(data) < _LENGTH.size:
        raise ValueError("a message is shorter than its length")
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    try:
        value, shapes = parse_bounded_json(data[_LENGTH.size : begin], MOST_VALUES)
        arrays = []
        for dtype, shape in shapes:
            if dtype not in _DTYPES:
                raise ValueError(f"an array of {dtype!r}")
            size = math.prod(shape)
            arrays.append(np.frombuffer(data, dtype, size, begin).reshape(shape))
            begin += size * arrays[-1].itemsize
        if begin != len(data):
            raise ValueError("bytes are left over")
        return _restored(value, arrays)
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"no message: {error}") from None


def _plain(value: Any, parts: list[bytes], shapes: list[list[Any]]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if kind is dict:
        wrong = [key for key in value if type(key) is not str or key in (_ARRAY, _BYTES, _FLOAT)]
        if wrong:
            raise TypeError(f"a message between processes takes text keys, not {wrong[0]!r}")
        return {key: _plain(item, parts, shapes) for key, item in value.items()}
    if kind in (list, tuple):
        return [_plain(item, parts, shapes) for item in value]
    if kind is bytes:
        return {_BYTES: _added(np.frombuffer(value, np.uint8), parts, shapes)}
    if isinstance(value, np.ndarray) and (array := value.astype(value.dtype.newbyteorder("<"))).dtype.str in _DTYPES:
        return {_ARRAY: _added(array, parts, shapes)}
    raise TypeError(f"a message between processes holds JSON values, bytes and arrays, not {kind.__name__}")


def _added(array: np.ndarray, parts: list[bytes], shapes: list[list[Any]]) -> int:
    parts.append(array.tobytes())
    shapes.append([array.dtype.str, list(array.shape)])
    return len(parts) - 1


def _restored(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        if _BYTES in value:
            return arrays[value[_BYTES]].tobytes()
        if _FLOAT in value:
            return float(value[_FLOAT])
        return {key: _restored(item, arrays) for key, item in value.items()}
    return [_restored(item, arrays) for item in value] if isinstance(value, list) else value
