"""Reads whole files that somebody else has made: regular ones, of a limited size, that hold what their name says."""

from __future__ import annotations

import os
from pathlib import Path
import stat
from typing import BinaryIO

from k2jax.errors import UserError
from k2jax.files.magic import BYTES, kind_of

_WORDS = {
    "a pointer of Git LFS": "is a pointer of Git LFS and not the file; run `git lfs pull` where it came from",
    "a web page": "is a web page, perhaps that of a login; fetch the file itself",
    "zip": "is a zip archive; unpack it",
}


def foreign_content(head: bytes) -> str:
    """What a file holds instead of text, by its first ``magic.BYTES``, as the end of a message; empty for a text."""
    if not head:
        return "is empty; fetch it again"
    kind = kind_of(head)
    if kind is None:
        return ""
    if kind.end:
        return f"is compressed by {kind.name}; unpack it"
    return _WORDS.get(kind.name) or f"is {kind.encoding} and not UTF-8; save it as UTF-8"


def read_whole(path: Path, limit: int) -> bytes:
    """Reads a text file.

    Args:
        path: the file, or a link to it.
        limit: bytes that it may have.

    Raises:
        UserError: it is no regular file, is longer, or holds something that its first bytes tell apart from text.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UserError(f"{path} has more than {limit:,} bytes")
    if words := foreign_content(data[:BYTES]):
        raise UserError(f"{path} {words}")
    return data


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file, or a link to one, without waiting as for a pipe.

    Raises:
        UserError: it is something else.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is no regular file")
    return open(descriptor, "rb")
