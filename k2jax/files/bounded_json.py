"""JSON from whoever may be hostile: how many values it has is bounded before the first of them is made.

A byte of JSON can become fifty of Python's: 30 MB of ``[],`` are 15 million lists, 1.6 GB. A parser that is written in
C also keeps the interpreter's lock to the end, so that a server's event loop stands still, in whichever thread it runs.
Both are in proportion to the number of values, which is bounded here by a count of the marks between them.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import re
from typing import Any

MOST_VALUES = 500_000
"""Values of a document: at most some 60 MB of Python objects and 0.1 s of the interpreter's lock."""
BYTES_OF_A_VALUE = 120
"""What a value takes beside its text, at most: half a pair of an object with a single pair [bytes]."""
MOST_WIDE = 100_000
"""Characters beyond U+FFFF in a document longer than a megabyte."""
MOST_WIDE_TEXT = 8 << 20
"""Bytes of all strings with such characters in a document longer than a megabyte: they take four times as much."""
MARKS = b",:[{"
"""What stands between two values, or in front of the first of a list or an object."""
_WIDE_LEADS = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
"""First bytes of characters beyond U+FFFF."""
_INSIDE_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_WIDE = re.compile(rb"\\u[dD][89abAB]")
_LONG = 1 << 20  # bytes of a document that is worth a second look
_PIECE = 1 << 16  # bytes that are looked at before other threads may run


class TooManyValuesError(ValueError):
    """A document has more values than are read."""


def parse_bounded_json(data: bytes | bytearray | str, most: int = MOST_VALUES) -> Any:
    """Parses strict JSON, without NaN and infinities, of a limited number of values.

    Args:
        data: the document; bytes are UTF-8 and nothing else, because bytes of another encoding may be quotes by chance.
            A bytearray is emptied, so that a long document is not held beside its text and its values.
        most: of values; the keys of objects are counted too.

    Raises:
        TooManyValuesError: it has more.
        ValueError: it is not JSON in UTF-8, or nested too deeply.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if count_values(raw, most) > most:
        raise TooManyValuesError(f"it has more than {most:,} values")
    text = data if isinstance(data, str) else _escaped(data).decode("utf-8-sig")
    if isinstance(data, bytearray):
        data.clear()
    del raw
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _escaped(data: bytes | bytearray) -> bytes | bytearray:
    """A long document with escapes in the place of characters beyond U+FFFF, of which there may be ``MOST_WIDE``.

    A single one would make all of the document's text four times as long in memory.
    """
    if len(data) <= _LONG:
        return data
    for lead in _WIDE_LEADS:
        if lead not in data:
            continue
        first, *rest = data.split(lead, MOST_WIDE)
        if len(rest) == MOST_WIDE:
            raise TooManyValuesError(f"it has more than {MOST_WIDE:,} characters beyond U+FFFF")
        pieces, before = [first], first
        for part in rest:
            if (len(before) - len(before.rstrip(b"\\"))) % 2:
                raise ValueError("Invalid \\escape")
            code = ord((lead + part[:3]).decode()) - 0x10000
            pieces += [b"\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF)), part[3:]]
            before = part
        if rest:
            data = b"".join(pieces)
    _check_wide_text(data)
    return data


def is_read_as_it_stands(part: bytes, size: int) -> bool:
    """Whether nothing in a part of a document of ``size`` bytes is escaped or counted for its width before parsing."""
    return size <= _LONG or not (any(lead in part for lead in _WIDE_LEADS) or _WIDE.search(part))


def _check_wide_text(data: bytes | bytearray) -> None:
    """Raises TooManyValuesError for too much text in strings in which a character beyond U+FFFF is escaped."""
    if not _WIDE.search(data):
        return
    size = 0
    for begin, end in _strings(data):
        if end - begin > 12 and _WIDE.search(data, begin, end):
            size += end - begin
            if size > MOST_WIDE_TEXT:
                raise TooManyValuesError(
                    f"it has more than {MOST_WIDE_TEXT:,} bytes of texts with characters beyond U+FFFF"
                )


def _strings(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Ranges of the strings of a document, with their quotes, in order.

    They are searched in pieces, because an expression keeps the interpreter's lock while it goes through a long string.
    """
    end = 0
    while (begin := data.find(b'"', end)) >= 0:
        end = begin + 1
        while (after := _INSIDE_STRING.match(data, end, end + _PIECE).end()) > end:  # type: ignore[union-attr]
            end = after
        end = min(end + 1, len(data))
        yield begin, end


def count_values(data: bytes | bytearray, most: int) -> int:
    """The number of values of a document and of the keys of its objects, at least; exact where it is JSON.

    Counting ends beyond ``most``. Marks inside strings count only where they are not too many, because a document
    whose marks are few altogether need not be looked at twice.
    """
    marks = 1 + count_marks(data)
    if marks <= most:
        return marks
    count = 1
    for begin, end in _outside_strings(data):
        count += sum(data.count(mark, begin, end) for mark in (b",", b":", b"[", b"{"))
        if count > most:
            break
    return count


def count_marks(data: bytes | bytearray) -> int:
    """The number of marks between values, those inside strings included: as many as there are values, or more."""
    return sum(map(data.count, (bytes((mark,)) for mark in MARKS)))


def _outside_strings(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Ranges of a document that lie outside its strings, in order, none of them longer than ``_PIECE`` bytes."""
    begin, size = 0, len(data)
    while begin < size:
        quote = data.find(b'"', begin, begin + _PIECE)
        end = min(begin + _PIECE, size) if quote < 0 else quote
        yield begin, end
        begin = end if quote < 0 else _end_of_string(data, quote + 1)


def _end_of_string(data: bytes | bytearray, begin: int) -> int:
    """Where a string ends, behind its closing quote; the end of the document where it has none."""
    while (quote := data.find(b'"', begin)) >= 0:
        backslashes = quote - len(data[begin:quote].rstrip(b"\\")) - begin
        if not backslashes % 2:
            return quote + 1
        begin = quote + 1
    return len(data)


def refuse_constant(constant: str) -> None:
    """Raises ValueError for NaN and the infinities."""
    raise ValueError(f"{constant} is not JSON")
