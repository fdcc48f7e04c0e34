"""Reads whole files that somebody else has made: regular ones, of a limited size, that hold what their name says."""

from __future__ import annotations

import os
from pathlib import Path
import stat
from typing import BinaryIO

from k2jax.errors import UserError

_MAGIC = {
    b"version https://git-lfs": "is a pointer of Git LFS and not the file; run `git lfs pull` where it came from",
    b"\x1f\x8b": "is compressed by gzip; unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; unpack it",
    b"\xfd7zXZ\x00": "is compressed by xz; unpack it",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"\xff\xfe": "is UTF-16 and not UTF-8; save it as UTF-8",
    b"\xfe\xff": "is UTF-16 and not UTF-8; save it as UTF-8",
}
_PAGES = (b"<!doctype html", b"<html")


def foreign_content(head: bytes) -> str:
    """What a file holds instead of text, by its first 64 bytes, as the end of a message; empty for a text."""
    if not head:
        return "is empty; fetch it again"
    if head.lstrip().lower().startswith(_PAGES):
        return "is a web page, perhaps that of a login; fetch the file itself"
    return next((words for magic, words in _MAGIC.items() if head.startswith(magic)), "")


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
    if words := foreign_content(data[:64]):
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
