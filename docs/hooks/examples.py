"""Griffe extension: the ``Example:`` sections of docstrings become blocks of code on the API pages."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:[ ]{4}.*(?:\n|$)|\n(?=\n*[ ]{4}))+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Rewrites docstrings when their objects are loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fences the code of the docstring's examples."""
        del kwargs
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    code = textwrap.dedent(match[1]).strip("\n")
    language = "pycon" if code.startswith(">>>") else "sh"
    return f"**Example:**\n\n```{language}\n{code}\n```\n"
