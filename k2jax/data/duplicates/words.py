"""Texts as arrays of hashed words: what a word is, and a 64-bit number for each, by NumPy over many texts at once.

A word is a longest run of letters, digits and underscores, in lower case and in Unicode's form NFKC; everything else
separates words. Of scripts that are written without spaces (Han, kana, Thai, Lao, Burmese, Khmer) every letter is a
word. Words of at most eight bytes never have the same number; others do with a chance of 2^-64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import functools
import re
from typing import NamedTuple
import unicodedata

import numpy as np
import xxhash

WINDOW = 1 << 18
"""Bytes that are looked at together: their arrays fit into a processor's cache."""
_PLAIN = bytes(
    byte if byte >= 128 or chr(byte).isalnum() or byte == ord("_") else 0 for byte in bytes(range(256)).lower()
)
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_LONGEST = 64  # bytes of a word that is hashed with all others
_FIRST, _NEXT, _LAST = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))
_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"


class HashedTexts(NamedTuple):
    """Words of several texts, one text after the other.

    Attributes:
        words: uint64 ``[W]``, a number for each word.
        ends: int64 ``[D]``, where the words of each text end.
        digits: bool ``[W]``, which words hold one of the digits 0 to 9.
    """

    words: np.ndarray
    ends: np.ndarray
    digits: np.ndarray

    def spans(self) -> Iterator[tuple[int, int]]:
        """Where the words of each text begin and end."""
        ends = self.ends.tolist()
        return zip([0, *ends[:-1]], ends, strict=True)


def batches(documents: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Portions of documents for ``hash_words``: about ``WINDOW`` characters each, or one longer document."""
    batch, size = [], 0
    for document in documents:
        length = len(document[1]) + 1
        if batch and size + length > WINDOW:
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += length
    if batch:
        yield batch


def hash_words(texts: Sequence[str], digits: bool = False) -> HashedTexts:
    """Hashes the words of texts; see ``batches`` for how many at a time.

    Args:
        texts: to hash. Text outside ASCII is several times slower.
        digits: also says which words hold digits.
    """
    plain = [_plain(text) for text in texts]
    buffer = (b"\0" + b"\0".join(plain) + b"\0" * 9).translate(_PLAIN)
    if len(plain) == 1:
        parts = [_hash_window(window, digits) for window in _windows(buffer)]
        words, _, marks = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return HashedTexts(words, np.array([len(words)]), marks)
    words, starts, marks = _hash_window(buffer, digits)
    offsets = np.cumsum([len(text) + 1 for text in plain])
    return HashedTexts(words, np.searchsorted(starts, offsets), marks)


def _plain(text: str) -> bytes:
    """A text whose bytes of words are letters, digits, underscores and all beyond ASCII."""
    if text.isascii():
        return text.encode()
    text = unicodedata.normalize("NFKC", text).lower()
    separators, alone = _patterns()
    return alone.sub(r" \g<0> ", separators.sub(" ", text)).encode("utf-8", "replace")


@functools.cache
def _patterns() -> tuple[re.Pattern, re.Pattern]:
    """What separates words beyond ASCII, and letters that are words; vowel signs and accents belong to words."""
    marks = "".join(c for c in map(chr, range(0x300, 0x3100)) if unicodedata.category(c)[0] == "M")
    separators = re.compile(rf"[^\w\x00-\x7f{marks}\ufe00-\ufe2f]")
    return separators, re.compile(rf"[{_WITHOUT_SPACES}\U00020000-\U0003ffff][{marks}]*")


def _windows(buffer: bytes) -> Iterator[bytes]:
    """Portions of a long buffer, cut between words; each ends with the zeros that ``_hash_window`` needs."""
    begin = 0
    while len(buffer) - begin > 2 * WINDOW:
        end = buffer.rfind(b"\0", begin + 1, begin + WINDOW)
        if end < 0:
            end = buffer.find(b"\0", begin + WINDOW)
        yield buffer[begin : end + 1] + b"\0" * 8
        begin = end
    yield buffer[begin:]


def _hash_window(buffer: bytes, digits: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the words of a buffer that ends with nine zeros, where each begins, and which hold digits."""
    content = np.frombuffer(buffer, np.uint8)
    is_word = content != 0
    edges = np.flatnonzero(is_word[1:] != is_word[:-1])
    starts, lengths = edges[0::2] + 1, edges[1::2] - edges[0::2]
    eights = np.ndarray((len(buffer) - 7,), "<u8", buffer, strides=(1,))
    words = eights[starts]
    words &= _MASKS[np.minimum(lengths, 8)]
    words *= _FIRST
    longer = np.flatnonzero(lengths > 8)
    for done in range(8, _LONGEST, 8):
        if not longer.size:
            break
        piece = eights[starts[longer] + done] & _MASKS[np.minimum(lengths[longer] - done, 8)]
        mixed = words[longer]
        mixed ^= mixed >> np.uint64(32)
        words[longer] = (mixed ^ piece) * _NEXT
        longer = longer[lengths[longer] > done + 8]
    for at in longer.tolist():
        start = int(starts[at])
        words[at] = xxhash.xxh3_64_intdigest(buffer[start : start + int(lengths[at])])
    words ^= words >> np.uint64(32)
    words *= _LAST
    words ^= words >> np.uint64(29)
    marks = np.zeros(len(words), bool)
    if digits:
        places = np.flatnonzero((content >= ord("0")) & (content <= ord("9")))
        marks[np.searchsorted(starts, places, "right") - 1] = True
    return words, starts, marks
