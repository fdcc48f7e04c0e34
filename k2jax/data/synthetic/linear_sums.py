"""Checksums of very many pages that nobody has to make.

A CRC-32 is affine: of pages of one length, ``crc(a ^ b) = crc(a) ^ crc(b) ^ crc(0)``. Where pages differ only in bits
that a number of theirs decides, the sum of each follows from the number.
"""

from __future__ import annotations

from collections.abc import Sequence
import zlib

import numpy as np


def linear_sums(base: bytes, masks: Sequence[bytes], numbers: np.ndarray) -> np.ndarray:
    """CRC-32 of pages, uint32 ``[n]``.

    Args:
        base: a page whose number is 0.
        masks: what bit b of a number changes, by exclusive or.
        numbers: of the pages, int64 ``[n]``.
    """
    zero = zlib.crc32(bytes(len(base)))
    sums = np.full(len(numbers), zlib.crc32(base), np.uint32)
    for bit, mask in enumerate(masks):
        sums[(numbers >> bit & 1).astype(bool)] ^= np.uint32(zlib.crc32(mask) ^ zero)
    return sums
