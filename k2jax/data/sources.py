"""Where documents come from: an ordered list of files, or a Hugging Face data set, as ``(name, text)`` pairs.

The order is a function of the files alone. A record that cannot be used is reported with its file and position, never
passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import glob
import itertools
import os
from pathlib import Path
import sysconfig

from k2jax.config.schema import SourceConfig
from k2jax.data import records
from k2jax.errors import UserError

NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
KINDS = ("stdlib", "text", "jsonl", "parquet", "huggingface")
LINES_SHOWN = 10


class CorruptRecords:
    """Collects unusable records, or raises at the first one.

    Attributes:
        count: records reported so far.
        shown: the first hundred, one line each: where and why.
    """

    def __init__(self, on_corrupt: str = "skip", log: Callable[[str], None] | None = None):
        """``on_corrupt`` is ``skip`` or ``fail``; ``log`` gets the first lines."""
        if on_corrupt not in ("skip", "fail"):
            raise UserError(f"data.on_corrupt is {on_corrupt!r}: give 'skip' or 'fail'")
        self.count, self.shown = 0, []
        self._fail, self._log = on_corrupt == "fail", log or (lambda line: None)

    def __call__(self, where: str, why: str) -> None:
        """Reports one record.

        Raises:
            UserError: with ``on_corrupt=fail``.
        """
        if self._fail:
            raise UserError(f"corrupt record in {where}: {why}; mend it, or set data.on_corrupt=skip")
        self.count += 1
        if self.count <= 100:
            self.shown.append(f"{where}: {why}")
        if self.count <= LINES_SHOWN:
            self._log(f"skipped {where}: {why}")
        if self.count == LINES_SHOWN + 1:
            self._log("more records are skipped; the manifest has their number and the first hundred")


def documents(name: str, source: SourceConfig, report: CorruptRecords) -> Iterator[tuple[str, str]]:
    """Yields ``(document name, text)`` of a source, always in the same order; empty documents are left out.

    Args:
        name: the source's name in the configuration, for errors.
        source: what to read.
        report: gets every record that cannot be used.

    Raises:
        UserError: when the source is missing or holds no documents.
    """
    if source.kind == "huggingface" and source.path:
        found = records.huggingface(source.path, source.subset, source.split, source.field, report)
    else:
        read = {"jsonl": records.jsonl, "parquet": records.parquet}.get(source.kind, records.whole_file)
        found = (document for file in files(name, source) for document in read(file, source.field, report))
    nonempty = ((where, text) for where, text in found if text)
    limited = itertools.islice(nonempty, source.max_documents or None)
    first = next(limited, None)
    if first is None:
        why = "nothing but empty text"
        if report.count:
            why = f"{report.count} records were skipped, the first in {report.shown[0]}"
        raise UserError(f"source {name!r} has no documents in {source.path or source.kind}: {why}")
    yield first
    yield from limited


def describe(name: str, source: SourceConfig) -> dict:
    """What decides a source's documents, JSON-serialisable: settings, and path, size and mtime of every file.

    Raises:
        UserError: when the source is missing.
    """
    settings = {key: getattr(source, key) for key in ("kind", "field", "max_documents")}
    if source.kind == "huggingface":
        settings |= {"path": source.path, "subset": source.subset, "split": source.split}
        if not Path(source.path).exists():
            return settings
    stats = [(str(path), path.stat()) for path in files(name, source)]
    return settings | {"files": [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats]}


def files(name: str, source: SourceConfig) -> list[Path]:
    """The files of a source, sorted by path.

    Raises:
        UserError: when the kind is unknown, or nothing is there.
    """
    if source.kind not in KINDS:
        raise UserError(f"source {name!r} has kind {source.kind!r}: give one of {', '.join(KINDS)}")
    if source.kind == "stdlib":
        return _stdlib_files()
    if not source.path:
        raise UserError(f"source {name!r} of kind {source.kind} needs a path: set data.sources.{name}.path")
    path = Path(source.path).expanduser()
    suffix = f".{source.kind}" if source.kind in ("jsonl", "parquet") else ""
    if path.is_dir():
        found = [p for p in path.rglob(f"*{suffix}") if not _is_hidden(p.relative_to(path))]
    elif path.exists():
        found = [path]
    else:
        found = [Path(p) for p in glob.glob(str(path), recursive=True)]
    found = sorted((Path(os.path.abspath(p)) for p in found if p.is_file()), key=Path.as_posix)
    if not found:
        empty = f"holds no *{suffix} files" if suffix else "holds no files"
        why = empty if path.is_dir() else "does not exist and matches no files"
        raise UserError(f"source {name!r}: {path} {why}")
    return found


def _stdlib_files() -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = [name for name in subfolders if name not in NOT_LIBRARY]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted((path for path in found if path.is_file()), key=Path.as_posix)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
