"""Parts of shell scripts: commands of quoted words, and here-documents."""

from __future__ import annotations

from collections.abc import Iterable
import shlex


def here_document(command: str, text: str) -> str:
    """Returns ``command`` with ``text``, which must end in a line break, as its unchanged standard input."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return f"{command} << '{end}'\n{text}{end}\n"


def command_line(words: Iterable[str], indent: str = "") -> str:
    """Returns a command of quoted words, with each flag, and each word after the flags, on its own line."""
    line, after_flag = indent, False
    for word in words:
        flag = word.startswith("--")
        if line != indent:
            line += f" \\\n{indent}  " if flag or after_flag else " "
        line += shlex.quote(word)
        after_flag = flag
    return line
