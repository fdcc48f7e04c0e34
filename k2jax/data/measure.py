"""Compressibility of a text without a model: figures that reports print beside a model's bits per byte."""

from __future__ import annotations

import lzma
import zlib

import numpy as np

COMPRESSED_AT_MOST = 64 * 2**20  # xz takes about a second per MB
GZIP_FORMAT = 31  # zlib's code for a gzip header and the largest window


class TextMeasure:
    """Measures the concatenation of UTF-8 texts in one streaming pass, in constant memory."""

    def __init__(self):
        """Starts with an empty text; gzip and xz read only the first ``COMPRESSED_AT_MOST`` bytes of it."""
        self._counts = np.zeros(256, np.int64)
        self._seen = 0
        self._gzip = zlib.compressobj(9, zlib.DEFLATED, GZIP_FORMAT)
        self._xz = lzma.LZMACompressor()
        self._gzip_bytes = self._xz_bytes = 0

    def add(self, text: bytes) -> None:
        """Appends a text."""
        self._counts += np.bincount(np.frombuffer(text, np.uint8), minlength=256)
        head = text[: COMPRESSED_AT_MOST - self._seen]
        self._seen += len(head)
        self._gzip_bytes += len(self._gzip.compress(head))
        self._xz_bytes += len(self._xz.compress(head))

    def finish(self) -> dict:
        """Returns the figures of the whole text.

        Returns:
            ``byte_entropy_bits``: entropy of the single-byte distribution of the whole text [bits per byte];
            ``gzip_bits_per_byte`` (gzip -9) and ``xz_bits_per_byte``: 8 * compressed / raw over the first
            ``compressed_bytes`` of it; ``compression_capped``: whether the text is longer.
        """
        gzip_bytes = self._gzip_bytes + len(self._gzip.flush())
        xz_bytes = self._xz_bytes + len(self._xz.flush())
        share = self._counts[self._counts > 0] / self._counts.sum()
        return {
            "byte_entropy_bits": float(-(share * np.log2(share)).sum()),
            "gzip_bits_per_byte": 8 * gzip_bytes / self._seen,
            "xz_bits_per_byte": 8 * xz_bytes / self._seen,
            "compressed_bytes": self._seen,
            "compression_capped": self._seen < int(self._counts.sum()),
        }
