"""The sentences of a text."""

from __future__ import annotations

import re

_OPENING, _CLOSING = "\"'\u201c\u2018(\\[", "\"'\u201d\u2019)\\]"
_CAPITAL = r"[^\W_a-z\u00df-\u00f6\u00f8-\u00ff]"
_END = re.compile(rf"(?<=[.!?\u2026])[{_CLOSING}]*\s+(?=[{_OPENING}]*{_CAPITAL})|\n\s*\n")
_ABBREVIATED = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|cf|Fig|Eq)|\b[A-Z])\.$")


def sentences_of(text: str) -> list[str]:
    """The sentences of a text in order. Initials and common abbreviations end none; a blank line does."""
    parts, begin = [], 0
    for end in _END.finditer(text):
        if _ABBREVIATED.search(text[begin : end.start()]) and "\n" not in end[0]:
            continue
        parts.append(text[begin : end.end()].strip())
        begin = end.end()
    parts.append(text[begin:].strip())
    return [part for part in parts if part]
