"""Documents of a source, an ordered list of files or a Hugging Face data set, as ``(name, text)`` pairs.

The order depends on the files alone. An unusable record is reported with its file and position, never skipped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import itertools
from pathlib import Path
from typing import Any, TypeVar

from k2jax.config.schema import OnCorrupt, SourceConfig
from k2jax.data.source_files import source_files
from k2jax.errors import UserError
from k2jax.files import readers as records
from k2jax.files.content import FileRange
from k2jax.files.dolma_lines import attribute_files, dolma
from k2jax.files.lance_tables import lance
from k2jax.files.text_tars import text_tar
from k2jax.files.web_archives import WEB_ARCHIVE, warc

Item = TypeVar("Item")
LINES_SHOWN = 10
MOST_SHOWN = 100  # records that a manifest shows
FIELD_NAME = 80  # characters of a field's name that a report repeats
_NO_FILES = ("synthetic_images", "huggingface")
READING = 2
"""Number of the way in which files are listed and read, raised when the same files give other records."""


class CorruptRecords:
    """Collects unusable records, or raises at the first one.

    Attributes:
        count: number of records reported so far.
        shown: location and reason of the first hundred, one line each.
        left_out: number of files that are of no kind that the source reads, by the end of their names.
        unread_fields: names of the fields that usable records have and nobody reads, with the number of records.
    """

    def __init__(self, on_corrupt: OnCorrupt = "skip", log: Callable[[str], None] | None = None):
        """Starts without records; ``on_corrupt`` is ``skip`` or ``fail``, and ``log`` receives the first lines."""
        self.count, self.shown = 0, []
        self.left_out: dict[str, int] = {}
        self.unread_fields: dict[str, int] = {}
        self._fail, self._log = on_corrupt == "fail", log or (lambda line: None)

    @property
    def manifest(self) -> dict[str, Any]:
        """What a manifest says of records, fields and files that were not read."""
        skipped = {"count": self.count, "first": self.shown}
        return {"skipped": skipped, "unread_fields": self.unread_fields, "left_out": self.left_out}

    def count_unread(self, names: Iterable[str]) -> None:
        """Counts the fields of a usable record that nobody reads, of at most a hundred names."""
        for name in names:
            name = name if len(name) <= FIELD_NAME else f"{name[: FIELD_NAME - 3]}..."
            if name in self.unread_fields or len(self.unread_fields) < 100:
                self.unread_fields[name] = self.unread_fields.get(name, 0) + 1

    def count_more(self, count: int) -> None:
        """Counts further unusable records, behind those that are shown."""
        self.count += count

    def __call__(self, where: str, why: str) -> None:
        """Reports an unusable record.

        Raises:
            UserError: if ``on_corrupt`` is ``fail``.
        """
        if self._fail:
            raise UserError(f"corrupt record in {where}: {why}; repair it, or set data.on_corrupt=skip")
        self.count += 1
        if self.count <= MOST_SHOWN:
            self.shown.append(f"{where}: {why}")
        if self.count <= LINES_SHOWN:
            self._log(f"skipped {where}: {why}")
        if self.count == LINES_SHOWN + 1:
            self._log("more records are skipped; the manifest lists their number and the first hundred")


def refuse_skipped(name: str, skipped: Mapping[str, Any], on_corrupt: OnCorrupt) -> None:
    """Raises UserError where a source that is in the cache has corrupt records, and ``on_corrupt`` is ``fail``.

    Args:
        name: of the source.
        skipped: their ``count`` and the ``first`` of them, from its manifest.
        on_corrupt: of the configuration.
    """
    if skipped["count"] and on_corrupt == "fail":
        raise UserError(
            f"source {name!r} has {skipped['count']} corrupt records, the first in {skipped['first'][0]}; "
            "repair them, or set data.on_corrupt=skip"
        )


def documents(name: str, source: SourceConfig, report: CorruptRecords) -> Iterator[tuple[str, str]]:
    """Pairs ``(document name, text)`` of a source, always in the same order and without empty documents.

    Args:
        name: name of the source in the configuration, for error messages.
        source: the source to read.
        report: receives every unusable record.

    Raises:
        UserError: if the source is missing or has no documents.
    """
    if source.kind == "huggingface" and source.path:
        named_texts = records.huggingface(source.path, source.subset, source.split, source.field, report)
    else:
        named_texts = texts_of(source, files(name, source), report)
    return at_least_one(name, source, ((where, text) for where, text in named_texts if text), report, "documents")


def texts_of(source: SourceConfig, parts: Iterable[FileRange], report: CorruptRecords) -> Iterator[tuple[str, str]]:
    """Pairs ``(document name, text)`` of files of a source, or of parts of them, empty documents included.

    Args:
        source: the kind and the field of the text.
        parts: where they are.
        report: receives every unusable record.
    """
    for part in parts:
        if source.kind == "jsonl" and source.exclude:
            yield from dolma(part, source.field, source.exclude, report)
        elif source.kind == "jsonl":
            yield from records.jsonl(part.path, source.field, report, part.begin, part.end)
        elif source.kind == "parquet":
            yield from records.parquet(part.path, source.field, report, part.begin, part.end)
        elif source.kind == "lance":
            yield from lance(part.path, source.field, report, part.begin, part.end)
        elif source.kind == "archive" and WEB_ARCHIVE.search(part.path.name):
            yield from warc(part.path, report)
        elif source.kind == "archive":
            yield from text_tar(part.path, source.field, report)
        else:
            yield from records.whole_file(part.path, source.field, report)


def at_least_one(
    name: str, source: SourceConfig, items: Iterator[Item], report: CorruptRecords, what: str
) -> Iterator[Item]:
    """The items of a source, at most ``max_documents`` of them.

    Raises:
        UserError: there is none; ``what`` says of what.
    """
    limited = itertools.islice(items, source.max_documents or None)
    first = next(limited, None)
    if first is None:
        why = "nothing but empty text"
        if report.count:
            why = f"{report.count} records were skipped, the first in {report.shown[0]}"
        raise UserError(f"source {name!r} has no {what} in {source.path or source.kind}: {why}")
    return itertools.chain([first], limited)


def describe(name: str, source: SourceConfig) -> dict:
    """Describes a source for the key of its cache folder: settings, and path, size and mtime of every file.

    Returns:
        A JSON-serialisable dict.

    Raises:
        UserError: if the source is missing.
    """
    settings = {key: getattr(source, key) for key in ("kind", "field", "max_documents")}
    if source.filters:
        settings["filters"] = list(source.filters)
    if source.media_from:
        settings["media_from"] = list(source.media_from)
    if source.exclude:
        settings["exclude"] = list(source.exclude)
    if source.kind == "huggingface":
        settings |= {"path": source.path, "subset": source.subset, "split": source.split}
        if not Path(source.path).exists():
            return settings
    found = source_files(name, source)
    beside = itertools.chain(*attribute_files(found.paths, source.exclude))
    stats = [(str(path), path.stat()) for path in (*found.paths, *beside)]
    settings |= {"reading": READING, "unreadable": [list(line) for line in found.unreadable]}
    return settings | {"files": [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats]}


def files(name: str, source: SourceConfig) -> list[FileRange]:
    """The files of a source that are read, sorted by path, with their attributes.

    Raises:
        UserError: as of ``source_files`` and ``attribute_files``.
    """
    paths = source_files(name, source).paths
    beside = attribute_files(paths, source.exclude)
    return [FileRange(path, attributes=each) for path, each in zip(paths, beside, strict=True)]


def report_unread(name: str, source: SourceConfig, report: CorruptRecords) -> None:
    """Says what a source's folder holds and nobody reads: dead links are corrupt records, other files are counted.

    Args:
        name: of the source.
        source: where it is.
        report: receives the records, and keeps the counts for the manifest.

    Raises:
        UserError: the source is missing; or a record is corrupt, which ``report`` refuses.
    """
    if source.kind in _NO_FILES:
        return
    found = source_files(name, source)
    report.left_out = found.left_out
    for where, why in found.unreadable:
        report(where, why)


def log_left_out(name: str, source: SourceConfig, log: Callable[[str], None] | None) -> None:
    """Logs a line about the files of a source's folder that are not read, if there are any."""
    if log and source.kind not in _NO_FILES and (line := source_files(name, source).summary(name)):
        log(line)
