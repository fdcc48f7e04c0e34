"""The files of a source: which are read, and what a folder holds beside them, which is counted."""

from __future__ import annotations

from collections import Counter
import glob
import os
from pathlib import Path
import stat
import sysconfig
from typing import NamedTuple

from k2jax.config.schema import SourceConfig
from k2jax.data.source_objects import listed_objects
from k2jax.errors import UserError
from k2jax.files.dolma_lines import DOCUMENTS
from k2jax.files.lance_tables import newest_manifest
from k2jax.files.magic import COMPRESSED
from k2jax.files.objects.object_address import is_object_url
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.readers import has_lines_of_json

NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_USUAL = (".jsonl", ".parquet", ".tar", ".k2t")
_MAYBE_LINES = tuple(".json" + end for end in ("", *COMPRESSED))
_LINES = (*(name + end for name in (".jsonl", ".ndjson") for end in ("", *COMPRESSED)), *_MAYBE_LINES)
SUFFIXES = {
    "jsonl": _LINES,
    "parquet": (".parquet",),
    "lance": (),  # folders, see _Listing
    "archive": (*(name + end for name in (".warc", ".wet", ".tar") for end in ("", *COMPRESSED)), ".tgz"),
    "chat": _LINES,
    "token_rows": _LINES,
    "image_chat": (*_LINES, ".parquet", ".tar"),
    "trajectories": (".k2t",),
    "image_trajectories": (".k2t",),
}
"""Ends of the names of a folder's files that a kind of source reads, in capitals too; other kinds read all."""


class SourceFiles(NamedTuple):
    """Files of a source.

    Attributes:
        paths: what is read, sorted.
        left_out: number of files that are not, by the end of their names or another reason, in words.
        unreadable: place and reason of what ought to be read and cannot be: dead links, closed folders.
    """

    paths: list[Path] | list[ObjectPath]
    left_out: dict[str, int]
    unreadable: list[tuple[str, str]]

    def summary(self, name: str) -> str:
        """What is left out, in a line for the console; empty if nothing is."""
        counts = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
        number = sum(self.left_out.values())
        return f"{name}: reads {len(self.paths)} files and leaves out {number}: {counts}" if number else ""


def source_files(name: str, source: SourceConfig) -> SourceFiles:
    """Lists the files of a source.

    Links are followed, to folders too; a folder that is reached a second time is not listed again.

    Args:
        name: of the source.
        source: a folder, a file, or a pattern of names. A file that is named is read whatever its name is.

    Raises:
        UserError: there are no files.
    """
    if source.kind == "stdlib":
        return SourceFiles(_stdlib_files(), {}, [])
    if not source.path:
        raise UserError(f"source {name!r} of kind {source.kind} needs a path: set data.sources.{name}.path")
    if is_object_url(source.path):
        return SourceFiles(*listed_objects(name, source, SUFFIXES.get(source.kind, ("",))), [])
    path = Path(source.path.removeprefix("file://")).expanduser()
    if source.exclude and (path / DOCUMENTS).is_dir():
        path /= DOCUMENTS
    listing = _Listing(SUFFIXES.get(source.kind, ("",)), has_tables=source.kind == "lance")
    if path.is_dir():
        listing.add_folder(path)
    else:
        for each in [str(path)] if os.path.lexists(path) else glob.glob(str(path), recursive=True):
            listing.add_named(Path(each))
    found = listing.found()
    if not found.paths:
        raise UserError(f"source {name!r}: {path} {_nothing(path, source, found)}")
    return found


class _Listing:
    """Files that are met on the way through folders; or data sets of Lance, each as its newest manifest."""

    def __init__(self, suffixes: tuple[str, ...], *, has_tables: bool):
        self._suffixes, self._has_tables = suffixes, has_tables
        self._paths: list[Path] = []
        self._left_out: Counter[str] = Counter()
        self._unreadable: list[tuple[str, str]] = []
        self._folders: set[tuple[int, int]] = set()

    def found(self) -> SourceFiles:
        paths = sorted((Path(os.path.abspath(path)) for path in self._paths), key=Path.as_posix)
        return SourceFiles(paths, dict(sorted(self._left_out.items())), sorted(self._unreadable))

    def add_named(self, path: Path) -> None:
        """A file that the configuration names, or that fits its pattern; folders of a pattern are left out."""
        status = self._status(path)
        if self._has_tables and status is not None:
            if stat.S_ISDIR(status.st_mode):
                self.add_folder(path)
            else:
                self._left_out["that are no data sets of Lance"] += 1
        elif status is not None and stat.S_ISREG(status.st_mode):
            self._paths.append(path)
        elif status is not None:
            self._left_out["folders of the pattern" if stat.S_ISDIR(status.st_mode) else "that are no files"] += 1

    def add_folder(self, folder: Path) -> None:
        """A folder and all folders below it."""
        try:
            status = folder.stat()
            if (place := (status.st_dev, status.st_ino)) in self._folders:
                self._left_out["links to folders that are listed"] += 1
                return
            self._folders.add(place)
            if self._has_tables and (manifest := newest_manifest(folder)):
                self._paths.append(manifest)
                return
            names = sorted(os.listdir(folder))
        except OSError as error:
            self._unreadable.append((str(folder), f"cannot be listed: {error.strerror}"))
            return
        for name in names:
            if name.startswith("."):
                self._left_out["hidden"] += 1
            elif (status := self._status(folder / name)) is None:
                continue
            elif stat.S_ISDIR(status.st_mode):
                self.add_folder(folder / name)
            elif stat.S_ISREG(status.st_mode):
                self._add_file(folder / name)
            else:
                self._left_out["that are no files"] += 1

    def _add_file(self, path: Path) -> None:
        lower = path.name.lower()
        if not lower.endswith(self._suffixes):
            self._left_out[f"*{path.suffix}" if path.suffix else "without an end of the name"] += 1
        elif self._suffixes != ("",) and lower.endswith(_MAYBE_LINES) and not has_lines_of_json(path):
            self._left_out["*.json that have not one object a line"] += 1
        else:
            self._paths.append(path)

    def _status(self, path: Path) -> os.stat_result | None:
        try:
            return path.stat()
        except OSError as error:
            what = "is a link to nothing" if path.is_symlink() else "cannot be read"
            self._unreadable.append((str(path), f"{what}: {error.strerror}"))
            return None


def _nothing(path: Path, source: SourceConfig, found: SourceFiles) -> str:
    """Why there are no files."""
    beside = [f"{count} {reason}" for reason, count in found.left_out.items()]
    beside += [f"{where} {why}" for where, why in found.unreadable[:1]]
    beside = f" (only {', '.join(beside)})" if beside else ""
    if not path.is_dir():
        return f"does not exist and matches no files{beside}"
    if source.kind == "lance":
        return f"holds no data set of Lance{beside}"
    kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES.get(source.kind, ()) if suffix in _USUAL)
    return f"holds no {f'{kinds} ' if kinds else ''}files{beside}"


def _stdlib_files() -> list[Path]:
    paths = []
    for folder, subfolders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = [name for name in subfolders if name not in NOT_LIBRARY]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted((path for path in paths if path.is_file()), key=Path.as_posix)
