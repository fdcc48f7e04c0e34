"""Files that are whole or absent: everything a run rewrites goes through a temporary file and a rename."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Replace ``path`` by ``content`` (text as UTF-8) so that a reader, or a kill, never meets half of it.

    Folders are created. Lone surrogates, which decoded model output may hold, are written as "?".
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # the same folder: a rename must not cross devices
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could keep the rename and lose the content
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return path
