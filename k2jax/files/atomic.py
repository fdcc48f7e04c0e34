"""Atomic file replacement: a temporary file and a rename."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO


def write_atomic(path: Path | str, content: bytes | str, mode: int = 0o666) -> Path:
    """Replaces a file by ``content`` (text in UTF-8) atomically, also if the process is killed meanwhile.

    Missing folders are created. Unpaired surrogates, which decoded model output can contain, are written as "?". The
    file has the permissions ``mode``, less those that the process takes away from all its files.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode) as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    return path


def write_json_lines(path: Path | str, records: Iterable[Any]) -> int:
    """Replaces a file atomically by a line of JSON for every record; returns how many there are."""
    lines = [json.dumps(record) + "\n" for record in records]
    write_atomic(path, "".join(lines))
    return len(lines)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` at the end of the block; an exception leaves all as it was."""
    # In the same folder, because a rename must not cross file systems.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure could keep the rename and lose the content
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives an OSError of a write, which names no file, the name of its file for the message about a full disk."""
    try:
        yield
    except OSError as error:
        name_file(error, path)
        raise


def name_file(error: OSError, path: Path) -> None:
    """Names the file of an error, where nothing does."""
    if error.errno and error.filename is None:
        error.filename = str(path)
