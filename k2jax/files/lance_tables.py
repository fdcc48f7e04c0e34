"""Rows of Lance data sets, by their library (extra ``lance``).

A data set is a folder whose files never change; a version of it is a manifest that names some of them. So the newest
manifest stands for what is read, as any other source's file does.
"""

from __future__ import annotations

from collections.abc import Iterator
import importlib
import os
from pathlib import Path
import re
from types import ModuleType
from typing import Any

from k2jax.errors import UserError
from k2jax.files.readers import LARGEST_RECORD, ROWS_PER_READ, Documents, Report, arrow_text, first_line

VERSIONS = "_versions"
"""Folder of the manifests, by which a data set is known."""
_MANIFEST = re.compile(r"(\d{1,20})\.manifest")
_DESCENDING = 20
"""Digits of the name of a manifest that counts down from the largest number of 64 bits."""


def newest_manifest(folder: Path) -> Path | None:
    """The manifest of a data set's newest version; None where a folder is no data set.

    Raises:
        OSError: the folder cannot be listed.
    """
    try:
        names = os.listdir(folder / VERSIONS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = [name for name in names if _MANIFEST.fullmatch(name)]
    return folder / VERSIONS / max(found, key=_version) if found else None


def lance(manifest: Path, field: str, report: Report, begin: int = 0, end: int | None = None) -> Documents:
    """Reads one document per row of a version's string column ``field``, deleted rows left out.

    Args:
        manifest: of the version; see ``newest_manifest``.
        field: name of the column.
        report: receives what is unreadable: the version, a fragment as one record, or a row.
        begin: first fragment that is read.
        end: the one behind the last; None is all.
    """
    folder, opened = manifest.parent.parent, _opened(manifest)
    if isinstance(opened, str):
        return report(str(folder), f"not readable as Lance: {opened}")
    names = opened.schema.names
    if names.count(field) != 1:
        return report(str(folder), f"no column {field!r}, only {', '.join(names)}")
    row = 0
    for number, fragment in enumerate(opened.get_fragments()[:end]):
        first, row = row, row + fragment.count_rows()
        if number < begin:
            continue
        at = first
        try:
            for value in _cells(opened, fragment, field):
                where, at = f"{folder}, row {at}", at + 1
                if (text := arrow_text(value, field, where, report)) is not None:
                    yield where, text
        except BaseException as error:
            report(f"{folder}, rows {at} to {row - 1}", f"fragment {number} is broken: {_reason(error)}")


def fragment_sizes(manifest: Path, field: str) -> list[int]:
    """Bytes of the files of each fragment of a version; empty where it has something to report."""
    opened = _opened(manifest)
    if isinstance(opened, str) or opened.schema.names.count(field) != 1:
        return []
    files = [fragment.data_files() for fragment in opened.get_fragments()]
    return [sum(each.file_size_bytes or 0 for each in of_one) for of_one in files]


def _cells(opened: Any, fragment: Any, field: str) -> Iterator[Any]:
    # A batch has few rows, and none but the next is read ahead: rows may be large.
    limits = {"batch_size": ROWS_PER_READ, "batch_size_bytes": LARGEST_RECORD, "batch_readahead": 1}
    scanner = opened.scanner(columns=[field], fragments=[fragment], scan_in_order=True, **limits)
    for batch in scanner.to_batches():
        yield from batch.column(0)


def _opened(manifest: Path) -> Any:
    """The data set at a version, or why it cannot be opened."""
    try:
        return _library().dataset(str(manifest.parent.parent), version=_version(manifest.name))
    except UserError:
        raise
    except BaseException as error:
        return _reason(error)


def _version(name: str) -> int:
    number = name.partition(".")[0]
    return (1 << 64) - 1 - int(number) if len(number) == _DESCENDING else int(number)


def _reason(error: BaseException) -> str:
    """What is wrong with a data set: errors of the library, and panics of Rust, which are no ``Exception``.

    Raises:
        BaseException: the error is none of the library's.
    """
    if isinstance(error, ArithmeticError | LookupError | OSError | ValueError | RuntimeError | NotImplementedError):
        return first_line(error)
    if type(error).__name__ == "PanicException":
        return first_line(error)
    raise error


def _library() -> ModuleType:
    try:
        return importlib.import_module("lance")
    except ImportError:
        raise UserError('kind="lance" needs pylance, which is not installed: pip install "k2jax[lance]"') from None
