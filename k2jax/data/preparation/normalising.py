"""Characters of a text in one form."""

from __future__ import annotations

from collections.abc import Sequence
import re
import unicodedata

_LINE_ENDS = re.compile("\r\n?|\u2028|\u2029|\x85|\x0b|\x0c")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufeff\ufffe\uffff]")


def normalised(text: str, steps: Sequence[str]) -> str:
    r"""A text with its characters in one form.

    Args:
        text: any.
        steps: ``line_ends`` makes ``\n`` of all that ends a line or page, ``control`` removes control characters but
            tabs and line ends, and marks of byte order; ``nfc`` and ``nfkc`` are forms of Unicode. The order in which
            they are named does not matter.
    """
    if "line_ends" in steps:
        text = _LINE_ENDS.sub("\n", text)
    if "control" in steps:
        text = _CONTROL.sub("", text)
    for form in ("nfc", "nfkc"):
        if form in steps:
            text = unicodedata.normalize(form.upper(), text)
    return text
