"""Numbers and tables for people: significant digits, units, and aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import math
import re
from typing import Any


def significant(value: float, digits: int = 3) -> str:
    """Returns ``value`` rounded to significant digits, in scientific notation only below 1e-4 and from 1e15.

    >>> significant(0.012345), significant(12345.6), significant(9.996), significant(3.1e-7)
    ('0.0123', '12,300', '10.0', '3.10e-07')
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    rounded = f"{value:.{digits - 1}e}"  # rounding comes first, because it can change the exponent: 9.996 becomes 10.0
    exponent = int(rounded.partition("e")[2])
    if not -4 <= exponent < 15:
        return rounded
    return f"{float(rounded):,.{max(0, digits - 1 - exponent)}f}"


def percent(fraction: float, digits: int = 3) -> str:
    """Returns a fraction as a percentage with significant digits: 0.3456 -> ``34.6 %``."""
    return f"{significant(100 * fraction, digits)} %"


def quantity(number: float) -> str:
    """Returns a large count with three significant digits and a suffix: 8612345 -> ``8.61M``."""
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(number) >= size:
            return f"{significant(number / (1e3 if suffix == 'k' else size))}{suffix}"
    return f"{number:,.0f}"


def duration(seconds: float) -> str:
    """Returns seconds as ``12.3 s``, ``4 min 05 s``, ``3 h 07 min`` or ``2 d 04 h``."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def markdown_table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table with aligned columns; numbers are right-aligned, None is an empty cell.

    Raises:
        ValueError: a row and the header have different lengths.
    """
    head, body, right = _cells(header, rows, _escape)
    # Wide characters count as one column: only the alignment of the source suffers.
    widths = [max(3, *(len(row[i]) for row in (head, *body))) for i in range(len(head))]
    rule = [("-" * (w - 1) + ":") if r else "-" * w for w, r in zip(widths, right, strict=True)]
    lines = [_aligned(head, widths, right), rule, *(_aligned(row, widths, right) for row in body)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def text_table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a plain-text table for the terminal, with two spaces between columns and a rule under the header.

    Raises:
        ValueError: a row and the header have different lengths.
    """
    head, body, right = _cells(header, rows, lambda text: text.replace("\n", " "))
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    lines = [_aligned(head, widths, right), rule, *(_aligned(row, widths, right) for row in body)]
    return "\n".join("  ".join(line).rstrip() for line in lines) + "\n"


def fenced(text: str, language: str = "text") -> str:
    """Returns ``text`` as a Markdown code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def _cells(header: Sequence[Any], rows: Iterable[Sequence[Any]], clean: Any) -> tuple[list, list[list], list[bool]]:
    rows = [list(row) for row in rows]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under a header of {len(header)}: {row}")
    right = []
    for column in range(len(header)):
        cells = [row[column] for row in rows if row[column] not in (None, "")]
        right.append(bool(cells) and all(map(_is_number, cells)))
    head = [clean(str(cell)) for cell in header]
    return head, [[clean(_text(cell)) for cell in row] for row in rows], right


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return significant(cell, 4)
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _is_number(cell: Any) -> bool:
    if isinstance(cell, bool):
        return False
    if isinstance(cell, (int, float)):
        return True
    text = str(cell).strip().lstrip("<>≤≥~").replace(",", "").rstrip(" %x")
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _aligned(cells: list[str], widths: list[int], right: list[bool]) -> list[str]:
    return [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)]
