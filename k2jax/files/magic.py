"""What a file is, by its first bytes and whatever its name: the one table of compressed, encoded and foreign kinds."""

from __future__ import annotations

import re
from typing import NamedTuple

BYTES = 64
"""First bytes of a file that tell its kind."""


class FileKind(NamedTuple):
    """A kind of file that is no UTF-8 text.

    Attributes:
        name: of the kind.
        pattern: of its first bytes.
        end: of the usual names of its files, where it is a text that is compressed as a stream; empty for others.
        encoding: of a text that is not UTF-8; empty for others.
    """

    name: str
    pattern: re.Pattern[bytes]
    end: str = ""
    encoding: str = ""


_KINDS = (
    FileKind("gzip", re.compile(rb"\x1f\x8b"), ".gz"),
    FileKind("bzip2", re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), ".bz2"),
    FileKind("xz", re.compile(rb"\xfd7zXZ\x00"), ".xz"),
    FileKind("zstd", re.compile(rb"\x28\xb5\x2f\xfd"), ".zst"),
    FileKind("zip", re.compile(rb"PK\x03\x04")),
    FileKind("a pointer of Git LFS", re.compile(rb"version https://git-lfs")),
    FileKind("a web page", re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)),
    FileKind("UTF-32", re.compile(rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff"), encoding="UTF-32"),  # before UTF-16
    FileKind("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff"), encoding="UTF-16"),
)
COMPRESSED = tuple(kind.end for kind in _KINDS if kind.end)
"""Ends of the usual names of compressed texts."""


def kind_of(head: bytes) -> FileKind | None:
    """The kind of a file by its first ``BYTES`` bytes; None where they are those of no kind that is known here."""
    return next((kind for kind in _KINDS if kind.pattern.match(head)), None)
