"""Choice of held-out documents, a pure function of a document's text, so that copies of it are in the same split.

A document is held out iff its hash, uniform over 64 bits, is below a threshold.
"""

from __future__ import annotations

import hashlib


def document_hash(text: bytes) -> int:
    """64-bit hash of a document's UTF-8 bytes, uniform over [0, 2^64)."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def threshold_for(held_out: float) -> int:
    """Threshold that holds out this fraction of documents in expectation, in [0, 1)."""
    return int(held_out * 2.0**64)


def adjusted_threshold(threshold: int, lowest: int, highest: int) -> int:
    """Threshold nearest to ``threshold`` with which both splits have a document.

    Args:
        threshold: the wanted threshold.
        lowest: smallest hash among the documents.
        highest: largest hash among the documents; larger than ``lowest``.
    """
    return min(max(threshold, lowest + 1), highest)
