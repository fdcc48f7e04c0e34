"""The content of data files: decompressed as their first bytes say, whatever their names, and bounded in its growth.

gzip, bzip2, xz and Zstandard are read as streams. A file may be broken off or hostile: whatever is wrong becomes an
OSError with a reason in words.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
import contextlib
import functools
import gzip
import importlib
import io
import lzma
from pathlib import Path
import sys
from typing import IO, Any, NamedTuple
import zlib

from k2jax.errors import UserError
from k2jax.files.magic import BYTES, kind_of
from k2jax.files.objects.object_path import ObjectPath

LARGEST = 1 << 30
"""Bytes of a text that is compressed: a larger one is not read."""
_AT_ONCE = 1 << 20
_MARK = b"\xef\xbb\xbf"


class FileRange(NamedTuple):
    """A part of a file that is read by itself.

    Attributes:
        path: the file.
        begin: its first byte, or of Parquet its first row group.
        end: the first byte or row group behind it; None is the end of the file.
        attributes: files beside it that say which of its documents are excluded, see ``dolma_lines``.
    """

    path: Path | ObjectPath
    begin: int = 0
    end: int | None = None
    attributes: tuple[Path | ObjectPath, ...] = ()

    @property
    def place(self) -> list[Any]:
        """Path, begin and end as JSON has them, for keys."""
        return [str(self.path), self.begin, self.end]


def lines_of_file(
    path: Path | ObjectPath, most: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Lines of a file with their ends, and the offset and length of each [bytes]; the first has no mark of UTF-8.

    Of a line of more than ``most`` bytes there is the beginning alone.

    Args:
        path: the file.
        most: bytes of a line.
        begin: reads the lines that begin at this byte or behind it, of a file that is not compressed.
        end: and before this one; None is the end of the file.

    Raises:
        OSError: it cannot be read, is damaged, or in UTF-16 or UTF-32.
    """
    end = sys.maxsize if end is None else end
    with _content(path) as file:
        offset = _next_line(file, begin, end) if begin else 0
        while offset < end and (raw := file.readline(most + 1)):
            length = len(raw) + (_skipped(file, raw) if len(raw) > most else 0)
            yield raw if offset else _without_mark(raw), offset, length
            offset += length


def _next_line(file: IO[bytes], begin: int, end: int) -> int:
    """Goes to the first line that begins at ``begin`` or behind it; returns its offset, ``end`` where there is none.

    It looks no further than ``end``: of a line that is longer than many parts, each of them reads its own bytes alone.
    """
    offset = begin - 1
    file.seek(offset)
    while offset < end and (piece := file.readline(min(_AT_ONCE, end - offset))):
        offset += len(piece)
        if piece.endswith(b"\n"):
            return offset
    return end


def count_lines(part: FileRange) -> int:
    """The number of lines that begin in a part of a file that is not compressed and ends with it or behind it."""
    first, last = max(part.begin - 1, 0), part.end - 1
    count = int(part.begin == 0 < part.end)
    with part.path.open("rb") as file:
        file.seek(first)
        while first < last and (piece := file.read(min(_AT_ONCE, last - first))):
            count, first = count + piece.count(b"\n"), first + len(piece)
    return count


def _skipped(file: IO[bytes], line: bytes) -> int:
    """Reads on to the end of a line whose beginning has been read; returns how many bytes that were."""
    skipped = 0
    while line and not line.endswith(b"\n"):
        line = file.readline(_AT_ONCE)
        skipped += len(line)
    return skipped


def stream_of_file(path: Path | ObjectPath) -> contextlib.AbstractContextManager[IO[bytes]]:
    """The content of a file for a block, as a stream; while it is read, OSErrors as of ``lines_of_file``."""
    return _content(path)


def text_of_file(path: Path | ObjectPath) -> bytes:
    """All bytes of a file, without a mark of UTF-8.

    Raises:
        OSError: as of ``lines_of_file``; a compressed text has more than ``LARGEST`` bytes.
    """
    with _content(path) as file:
        if not _kind_of(path):
            return _without_mark(file.read())
        text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise OSError(0, f"it grows to more than {LARGEST:,} bytes")
        return _without_mark(text)


@contextlib.contextmanager
def _content(path: Path | ObjectPath) -> Iterator[IO[bytes]]:
    """The content of a file as a stream; errors of decompression become OSErrors."""
    kind = _kind_of(path)
    opened = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": functools.partial(_zstandard, path)}
    try:
        with path.open("rb") as stored, opened[kind](stored) if kind else stored as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if not kind:
            raise
        why = getattr(error, "strerror", None) or (str(error).strip() or "it is broken off").splitlines()[0]
        raise OSError(0, f"{why} (compressed as {kind})") from None


def _kind_of(path: Path | ObjectPath) -> str:
    """How a file is compressed, as the end of its usual name, by its first bytes; empty where it is not."""
    with path.open("rb") as file:
        kind = kind_of(file.read(BYTES))
    return kind.end if kind else ""


def _zstandard(path: Path | ObjectPath, stored: IO[bytes]) -> IO[bytes]:
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError:
        raise UserError(f'{path} is compressed by Zstandard, which pyarrow reads: pip install "k2jax[data]"') from None
    source = pyarrow.OSFile(str(path)) if isinstance(path, Path) else pyarrow.PythonFile(stored, mode="r")
    return io.BufferedReader(pyarrow.CompressedInputStream(source, "zstd"), 1 << 16)


def _without_mark(begin: bytes) -> bytes:
    """The first bytes of a file without the mark of UTF-8; another encoding's is refused."""
    kind = kind_of(begin[:BYTES])
    if kind and kind.encoding:
        raise OSError(0, f"it is {kind.encoding}, not UTF-8: convert it with iconv -f {kind.encoding} -t UTF-8")
    return begin.removeprefix(_MARK)
