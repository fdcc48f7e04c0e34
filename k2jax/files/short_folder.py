"""Folders for Unix sockets, whose paths have to be short; those of processes that were killed are deleted."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import re
import shutil
import stat
import tempfile

from k2jax.files.atomic import write_atomic

_PREFIX = "k2jax-"
_NAME = re.compile(rf"{_PREFIX}\w+")


@contextlib.contextmanager
def short_folder(note: Path) -> Iterator[Path]:
    """A new folder with a short path, which nobody but this user can enter; it is deleted at the end.

    Args:
        note: a file that names the folder meanwhile. What it names before is the folder of a process that was killed,
            and is deleted.

    Raises:
        OSError: the folder or the note cannot be written.
    """
    _delete_named(note)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        write_atomic(note, folder, 0o600)
        yield Path(folder)
    note.unlink(missing_ok=True)


def _delete_named(note: Path) -> None:
    """Deletes the folder that a note names, where it can be none but one of this user's that ``short_folder`` made."""
    with contextlib.suppress(OSError, ValueError):
        path = Path(note.read_text(encoding="utf-8"))
        found = path.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.getuid(), 0o700)
        if is_own and _NAME.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
