"""Files of documents with names, as parts that other processes can read: JSON lines, compressed or not, and Parquet.

A record of dolma has ``id`` and ``text``. Every record counts, also one that cannot be used, which is reported and has
an empty text: attributes are written for every line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import glob
import os
from pathlib import Path
import time
from typing import Any

import xxhash

from k2jax.config.schema import SourceConfig
from k2jax.data.source_files import source_files
from k2jax.errors import UserError
from k2jax.files import readers
from k2jax.report.table import duration, quantity

LONGEST_ID = 1000
"""Characters of a document's name; a longer one is that of its line."""
LOG_SECONDS = 5.0
"""Between lines about one stage [s]."""


@dataclasses.dataclass(frozen=True)
class DocumentFile:
    """A file of documents.

    Attributes:
        path: of the file.
        name: its path within the folder of all files.
        field: of the text in a record.
        key: a hash of the content and the field.
        bytes: its size.
    """

    path: Path
    name: str
    field: str
    key: str
    bytes: int

    def read(self, report: Callable[[str, str], None] = lambda where, why: None) -> Iterator[tuple[str, str]]:
        """Names and texts of the documents.

        Args:
            report: receives the place of each unusable record, and the reason.

        Raises:
            UserError: the file cannot be read.
        """
        for name, where, record, why in self._all((self.field, "id"), report):
            if why:
                report(where, why)
            text = readers.checked_text(record, self.field, where, report) if not why else None
            given = record.get("id") if isinstance(record, dict) else None
            known = isinstance(given, str | int) and len(str(given)) <= LONGEST_ID
            yield str(given) if known else name, text or ""

    def records(self, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Records that can be used, with those of some fields that they have; of JSON lines with all.

        Args:
            fields: columns of Parquet, of which there has to be one.
        """
        for _, _, record, why in self._all(fields, lambda where, why: None):
            if not why and isinstance(record, dict):
                yield record

    def _all(self, fields: Sequence[str], report: Callable) -> Iterator[tuple[str, str, Any, str]]:
        """Name, place, value and what is wrong of every record."""
        if self.path.suffix.lower() != ".parquet":
            for line in readers.lines_of_json(self.path):
                yield line.name, line.where, line.value, line.why
            return
        for where, row in readers.parquet_rows(self.path, fields, report, readers.ROWS_PER_READ):
            try:
                yield where, where, {name: value.as_py() for name, value in row.items()}, ""
            except UnicodeDecodeError as error:
                yield where, where, None, f"not UTF-8 at byte {error.start} of the text"


def file_parts(path: str, field: str) -> list[DocumentFile]:
    """The files of a folder or of a pattern of names, sorted by path.

    Args:
        path: of a folder, a file or several.
        field: of the text in a record.

    Raises:
        UserError: there are none, or one cannot be read.
    """
    found, why = [], None
    for kind in ("jsonl", "parquet") if Path(path).expanduser().is_dir() else ("jsonl",):
        try:
            found += source_files("documents", SourceConfig(kind=kind, path=path)).paths
        except UserError as error:
            why = error
    if not found and why:
        raise UserError(f"there are no documents in {path}: neither JSON lines nor Parquet") from why
    root = _root(Path(os.path.abspath(Path(path).expanduser())))
    return [_part(each, root, field) for each in sorted(found, key=Path.as_posix)]


def _root(path: Path) -> Path:
    """The folder that names are relative to: the one above the first pattern, or above a single file."""
    while glob.has_magic(str(path)):
        path = path.parent
    return path if path.is_dir() else path.parent


def _part(path: Path, root: Path, field: str) -> DocumentFile:
    content = xxhash.xxh3_128(field.encode())
    try:
        with path.open("rb") as file:
            for portion in iter(functools.partial(file.read, 1 << 22), b""):
                content.update(portion)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    name = path.relative_to(root).as_posix()
    return DocumentFile(path, name, field, content.hexdigest(), path.stat().st_size)


class StageLines:
    """Prints how far the stages of some work are: items, documents a second, time left of the stage.

    Args:
        log: receives the lines.
        clock: returns seconds since any origin.
    """

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._log, self._clock, self._stage = log, clock, ""
        self._begin = self._printed = clock()

    def __call__(self, stage: str, done: int, items: int, documents: int) -> None:
        """Counts an item of a stage; ``documents`` are those of the stage that are done."""
        now = self._clock()
        if stage != self._stage:
            self._stage, self._begin, self._printed = stage, self._printed, self._printed
        if done < items and now < self._printed + LOG_SECONDS:
            return
        seconds = max(now - self._begin, 1e-9)
        left = f", {duration(seconds / done * (items - done))} left" if done < items else f" in {duration(seconds)}"
        rate = f", {quantity(documents / seconds)} documents/s" if documents else ""
        self._log(f"{stage}: {done:,} of {items:,}{rate}{left}")
        self._printed = now
