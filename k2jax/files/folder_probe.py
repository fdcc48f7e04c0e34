"""What a run needs of the folder that it writes to, tried before it is relied on.

Mounted object stores and network file systems lack some of it, and a run would find that at its first checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import errno
import os
from pathlib import Path
import secrets
import shutil

from k2jax.errors import UserError
from k2jax.files.atomic import name_file


def check_folder(folder: Path, name: str) -> None:
    """Tries in a folder what a run does there; nothing stays.

    Args:
        folder: that exists.
        name: of the flag that names it, for the message.

    Raises:
        UserError: in one line, what does not work and what it is for.
        OSError: the disk is full.
    """
    place = folder / f".probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        for what, purpose, attempt in _attempts(place):
            try:
                attempt()
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # says nothing of the file system
                    name_file(error, folder)
                    raise
                why = error.strerror or str(error)
                raise UserError(
                    f"{name} {folder}: {what} does not work there ({why}), {purpose}; use a local disk, a network file "
                    "system, or a bucket with a hierarchical namespace"
                ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _attempts(place: Path) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """What is tried, what it is for, and how; each builds on those before."""
    first, second, inner = place / "first", place / "second", place / "folder"
    yield "making folders and files", "of which a run consists", lambda: _make(inner, first)
    yield (
        "replacing a file by a rename",
        "by which a kill leaves the old or the new one",
        lambda: _replace(first, second),
    )
    yield "appending to a file", "as metrics are written", lambda: _append(second)
    yield "shortening a file", "by which half a line of a killed run is removed", lambda: _shorten(second)
    yield "renaming a folder", "by which a checkpoint is finished", lambda: _rename(inner)
    yield "removing a folder", "as old checkpoints are", lambda: shutil.rmtree(place)


def _make(inner: Path, first: Path) -> None:
    inner.mkdir(parents=True)
    for path in (first, inner / "file"):
        _write(path, "wb", b"first")


def _write(path: Path, mode: str, content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(first: Path, second: Path) -> None:
    _write(second, "wb", b"second")
    os.replace(first, second)
    _expect(second, b"first")


def _append(path: Path) -> None:
    _write(path, "ab", b" and more")
    _expect(path, b"first and more")


def _shorten(path: Path) -> None:
    os.truncate(path, 5)
    _expect(path, b"first")


def _rename(inner: Path) -> None:
    renamed = inner.with_name("renamed")
    os.rename(inner, renamed)
    _expect(renamed / "file", b"first")
    with contextlib.suppress(FileNotFoundError):
        if os.listdir(inner):
            raise OSError(0, "the old name is still there")


def _expect(path: Path, content: bytes) -> None:
    found = path.read_bytes()
    if found != content:
        raise OSError(0, f"it reads {found[:40]!r} and not {content!r}")
