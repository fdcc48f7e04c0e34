"""What a task has become, kept in one file until the shards of its source are written.

A part is a header and blocks, each behind its length and checksum: a line of JSON, and arrays of documents. It appears
whole or not at all. Corrupt records and unread fields are kept by the number of documents that were read before them:
who joins parts learns of them where a single reader would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
import json
import os
from pathlib import Path
import secrets
import socket
import struct
from typing import Any, BinaryIO, NamedTuple
import zlib

import numpy as np

from k2jax.data.sources import MOST_SHOWN
from k2jax.data.split_writer import flush_to_disk
from k2jax.data.tokenised import Tokenised
from k2jax.errors import UserError
from k2jax.files.atomic import naming

PART_FORMAT = 1
_MAGIC = b"k2jax part 1\n"
_HEAD = struct.Struct("<QI")
_BLOCK_BYTES = 4 * 2**20
_COLUMNS = (("lengths", np.uint32), ("sizes", np.uint32), ("digests", np.uint64), ("texts", np.int64))


class RecordedReport:
    """Takes the place of ``CorruptRecords`` where a part is made.

    Attributes:
        documents: number of documents that were read so far, which the reader counts.
        events: ``[documents, kind, ...]``: what was reported, and after how many documents.
    """

    def __init__(self):
        """Starts with no documents."""
        self.documents = self._corrupt = 0
        self.events: list[list[Any]] = []

    def __call__(self, where: str, why: str) -> None:
        """Keeps an unusable record, or behind the first hundred their number."""
        self._corrupt += 1
        if self._corrupt <= MOST_SHOWN:
            self.events.append([self.documents, "corrupt", where, why])
        elif self.events and self.events[-1][:2] == [self.documents, "more"]:
            self.events[-1][2] += 1
        else:
            self.events.append([self.documents, "more", 1])

    def count_unread(self, names: Iterable[str]) -> None:
        """Keeps the names of fields that nobody reads."""
        if names := list(names):
            self.events.append([self.documents, "unread", *names])


class PartBlock(NamedTuple):
    """Some documents of a part in order.

    Attributes:
        documents: they, as they were written; a text is there only where it may be held out.
        events: what was reported since the block before; see ``RecordedReport``.
        facts: of the last block, what is known of the whole part.
    """

    documents: list[Tokenised]
    events: list[list[Any]]
    facts: dict[str, Any]


class PartWriter:
    """Writes documents to a file, a block at a time.

    Args:
        file: to write to.
        dtype: of the values.
        threshold: texts of documents with smaller digests are kept, for the figures of the held-out split. That
            split may later be moved to the smallest digest, whose text is therefore kept too.
        report: receives what the reader reports.
    """

    def __init__(self, file: BinaryIO, dtype: str, threshold: int, report: RecordedReport):
        self._file, self._dtype, self._threshold, self._report = file, np.dtype(dtype), threshold, report
        self._lowest, self._size = 2**64, 0
        self._documents: list[Tokenised] = []
        file.write(_MAGIC)

    def add(self, document: Tokenised) -> None:
        """Appends a document."""
        keeps = document.digest < self._threshold or document.digest <= self._lowest
        self._lowest = min(self._lowest, document.digest)
        document = document if keeps else document._replace(text=None)
        self._documents.append(document)
        self._size += document.values.size * self._dtype.itemsize + len(document.text or b"")
        if self._size >= _BLOCK_BYTES:
            self._flush({})

    def finish(self, facts: dict[str, Any]) -> None:
        """Writes the last block, with what is known of the whole part."""
        self._flush(facts | {"last": True})

    def _flush(self, facts: dict[str, Any]) -> None:
        documents = self._documents
        header = {"documents": len(documents), "dtype": self._dtype.str, "events": self._report.events, "facts": facts}
        texts = [-1 if each.text is None else len(each.text) for each in documents]
        lengths, sizes = [len(each.values) for each in documents], [each.size for each in documents]
        columns = lengths, sizes, [each.digest for each in documents], texts
        pieces = [json.dumps(header).encode() + b"\n"]
        pieces += [np.array(column, dtype).tobytes() for column, (_, dtype) in zip(columns, _COLUMNS, strict=True)]
        pieces += [each.values.astype(self._dtype).tobytes() for each in documents]
        pieces += [each.text for each in documents if each.text is not None]
        content = b"".join(pieces)
        self._file.write(_HEAD.pack(len(content), zlib.crc32(content)))
        self._file.write(content)
        self._documents, self._size = [], 0
        self._report.events = []


@contextlib.contextmanager
def new_part(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes ``path`` at the end of the block; two processes may do it at once."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming(path), temporary.open("wb") as file:
            yield file
            flush_to_disk(file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_part(path: Path) -> Iterator[PartBlock]:
    """The blocks of a part, of which one is in memory at a time.

    Raises:
        FileNotFoundError: at once: there is none.
        UserError: it is damaged.
    """
    return _blocks(path, path.open("rb"))


def _blocks(path: Path, file: BinaryIO) -> Iterator[PartBlock]:
    with file:
        intact, block = file.read(len(_MAGIC)) == _MAGIC, None
        while intact and not (block and block.facts):
            head = file.read(_HEAD.size)
            if intact := len(head) == _HEAD.size:
                size, checksum = _HEAD.unpack(head)
                content = file.read(size)
                if intact := len(content) == size and zlib.crc32(content) == checksum:
                    yield (block := _parsed(content))
        if not intact:
            raise UserError(f"{path} is not as it was written: delete it to have it made again")


def _parsed(content: bytes) -> PartBlock:
    line, _, _ = content.partition(b"\n")
    header, place, columns = json.loads(line), len(line) + 1, []
    for _, dtype in _COLUMNS:
        column = np.frombuffer(content, dtype, header["documents"], place)
        columns.append(column.tolist())
        place += column.nbytes
    values = np.frombuffer(content, header["dtype"], sum(columns[0]), place)
    place, begin, documents = place + values.nbytes, 0, []
    for length, size, digest, text_size in zip(*columns, strict=True):
        text = None if text_size < 0 else content[place : place + text_size]
        documents.append(Tokenised(values[begin : begin + length], size, digest, text))
        begin, place = begin + length, place + max(text_size, 0)
    return PartBlock(documents, header["events"], header["facts"])


def remove_parts(paths: Iterable[Path]) -> None:
    """Removes parts, and incomplete ones of the same names whose processes on this host are gone."""
    paths = list(paths)
    names = {path.name for path in paths}
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        for temporary in folder.glob(".*.tmp"):
            name, _, owner = temporary.name[1:].rpartition(".part.")
            host, process, _ = owner.rsplit("-", 2)
            if f"{name}.part" in names and host == socket.gethostname() and not _lives(int(process)):
                temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another source may have parts in it
            folder.rmdir()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
