"""Pieces of shell scripts: quoted words, and documents that a script carries in itself."""

from __future__ import annotations

from collections.abc import Iterable
import shlex


def here_document(command: str, text: str) -> str:
    """``command`` with ``text``, which ends in a line break, as its input; the shell changes nothing in it."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return f"{command} << '{end}'\n{text}{end}\n"


def command_line(words: Iterable[str], indent: str = "") -> str:
    """A command of quoted words; each flag, and what follows the flags, on a line of its own."""
    line, after_flag = indent, False
    for word in words:
        flag = word.startswith("--")
        if line != indent:
            line += f" \\\n{indent}  " if flag or after_flag else " "
        line += shlex.quote(word)
        after_flag = flag
    return line
