"""Atomic file replacement: a temporary file and a rename."""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Replaces a file by ``content`` (text in UTF-8) atomically, also if the process is killed meanwhile.

    Missing folders are created. Unpaired surrogates, which decoded model output can contain, are written as "?".

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    # In the same folder, because a rename must not cross file systems.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure could keep the rename and lose the content
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a write does not name its file
            error.filename = str(path)
        raise
    return path


def write_json_lines(path: Path | str, records: Iterable[Any]) -> int:
    """Replaces a file atomically by a line of JSON for every record; returns how many there are."""
    lines = [json.dumps(record) + "\n" for record in records]
    write_atomic(path, "".join(lines))
    return len(lines)
