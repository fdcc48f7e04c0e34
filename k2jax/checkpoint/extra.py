"""The extra item of a checkpoint: what a loop keeps beside parameters and optimizer state, as JSON text.

Unfinished rollouts, phase tables and the like are trees of JSON values and NumPy arrays. Nothing is pickled: arrays lie
as an ``.npz`` archive beside the structure that names them.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

_ARRAY = "$array"


def encode(tree: Any) -> dict[str, Any]:
    """JSON values that hold a tree of dicts with text keys, lists, JSON scalars and NumPy arrays.

    Raises:
        TypeError: a value or a key of another kind.
    """
    arrays: dict[str, np.ndarray] = {}
    structure = _replace_arrays(tree, arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return {"structure": structure, "arrays": base64.b64encode(buffer.getvalue()).decode("ascii")}


def decode(encoded: dict[str, Any]) -> Any:
    """The tree that ``encode`` was given; tuples have become lists."""
    with np.load(io.BytesIO(base64.b64decode(encoded["arrays"])), allow_pickle=False) as arrays:
        return _restore_arrays(encoded["structure"], dict(arrays))


def _replace_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        arrays[str(len(arrays))] = value
        return {_ARRAY: str(len(arrays) - 1)}
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or key == _ARRAY]
        if wrong:
            raise TypeError(f"an extra checkpoint item takes text keys other than {_ARRAY!r}, not {wrong[0]!r}")
        return {key: _replace_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_arrays(item, arrays) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"an extra checkpoint item holds JSON values and NumPy arrays, not {type(value).__name__}")


def _restore_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {key: _restore_arrays(item, arrays) for key, item in value.items()}
    return [_restore_arrays(item, arrays) for item in value] if isinstance(value, list) else value
