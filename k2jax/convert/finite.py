"""Floating-point formats of weights: which there are, one that holds several, and whether all numbers are finite."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_EXPONENT = np.uint16(0x7F80)  # bits of bfloat16 that are all set in NaN and the infinities alone
_FLOATING = (np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), _BFLOAT16)


def is_floating(dtype: np.dtype) -> bool:
    """Whether weights may have this dtype: float16, bfloat16, float32 or float64."""
    return dtype in _FLOATING


def common_dtype(dtypes: set[np.dtype]) -> np.dtype:
    """The narrowest of these dtypes that holds numbers of all given ones without loss."""
    if not dtypes - {np.dtype(np.float16), _BFLOAT16} and len(dtypes) == 2:
        return np.dtype(np.float32)  # NumPy knows no common one
    wide = sorted(dtypes, key=lambda dtype: dtype.itemsize)
    return wide[-1]


def all_finite(rows: np.ndarray) -> bool:
    """Whether an array of one of these dtypes holds neither NaN nor an infinity."""
    if rows.dtype != _BFLOAT16:
        return bool(np.isfinite(rows).all())
    bits = np.ascontiguousarray(rows).view(np.uint16)  # np.isfinite takes four times as long
    return not bits.size or bool((bits & _EXPONENT).max() < _EXPONENT)
