"""Cuts the files of a source into tasks, by the files alone: never by who will do them.

Uncompressed lines are cut by bytes, Parquet files by row groups and Lance data sets by fragments; all other files are
read whole. Small files, and what remains of large ones, share a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from k2jax.config.schema import SourceConfig
from k2jax.data.sources import files
from k2jax.files.content import FileRange
from k2jax.files.lance_tables import fragment_sizes
from k2jax.files.magic import kind_of
from k2jax.files.readers import row_group_sizes

TASK_BYTES = 4 * 2**20
"""Bytes of a task, at least, but the last: seconds of work, and little to do again after a process was killed."""
LINES = ("jsonl", "chat", "token_rows")
"""Kinds of sources with a record a line."""
_FIRST = 1 << 16  # bytes in which a line must end where a file is cut


class ReadTask(NamedTuple):
    """What one process does at a time.

    Attributes:
        parts: files, or parts of them, whose records are stored together.
        stamps: size and time of change of each file, and of attributes beside it [bytes, ns].
        bytes: what it has to read, about.
        dropped: uint32 numbers of documents that ``deciding`` keeps and another step does not, as bytes.
    """

    parts: tuple[FileRange, ...]
    stamps: tuple[tuple[int, int], ...]
    bytes: int
    dropped: bytes = b""


def has_files(source: SourceConfig) -> bool:
    """Whether a source consists of files; a Hugging Face data set is a stream."""
    return not (source.kind == "huggingface" and source.path)


def cut(name: str, source: SourceConfig) -> Iterator[ReadTask]:
    """The tasks of a source, whose parts are all its files in order.

    Args:
        name: of the source.
        source: it has files.

    Raises:
        UserError: there are none.
    """
    parts, stamps, total = [], [], 0
    for file in files(name, source):
        status, *beside = (each.stat() for each in (file.path, *file.attributes))
        for part, size in _parts(file, status.st_size, source):
            parts.append(part)
            stamps += [(each.st_size, each.st_mtime_ns) for each in (status, *beside)]
            total += size
            if total >= TASK_BYTES:
                yield ReadTask(tuple(parts), tuple(stamps), total)
                parts, stamps, total = [], [], 0
    if parts:
        yield ReadTask(tuple(parts), tuple(stamps), total)


def _parts(file: FileRange, size: int, source: SourceConfig) -> Iterator[tuple[FileRange, int]]:
    """Parts of a whole file, and about how large each is [bytes]."""
    path = file.path
    if source.kind in LINES and not source.exclude and size > TASK_BYTES and _has_lines(path):
        for begin in range(0, size, TASK_BYTES):
            end = begin + TASK_BYTES if begin + TASK_BYTES < size else None
            yield FileRange(path, begin, end), min(TASK_BYTES, size - begin)
    elif source.kind == "parquet" and size > TASK_BYTES:
        yield from _ranges(path, size, row_group_sizes(path, source.field))
    elif source.kind == "lance":
        sizes = fragment_sizes(path, source.field)
        yield from _ranges(path, sum(sizes), sizes)
    else:
        yield file, size


def _has_lines(path: Path) -> bool:
    """Whether a file can be cut: whatever is said once of a whole file is said by who reads it whole."""
    try:
        with path.open("rb") as file:
            begin = file.read(_FIRST)
    except OSError:
        return False
    first, end, _ = begin.partition(b"\n")
    kind = kind_of(begin)
    return bool(end) and not (kind and (kind.end or kind.encoding)) and first.strip() not in (b"[", b"{")


def _ranges(path: Path, size: int, sizes: list[int]) -> Iterator[tuple[FileRange, int]]:
    """Row groups or fragments that make a task together; the whole file where it has something to report."""
    if len(sizes) < 2:
        yield FileRange(path), size
        return
    begin = total = 0
    for group, each in enumerate(sizes, start=1):
        total += each
        if total >= TASK_BYTES and group < len(sizes):
            yield FileRange(path, begin, group), total
            begin, total = group, 0
    yield FileRange(path, begin, None if begin else len(sizes)), total
