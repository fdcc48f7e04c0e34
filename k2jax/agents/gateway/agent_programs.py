"""Programs of agents as an image shows them: linked to the host's C library, whatever the image has in its place.

Programs in Node and Bun start themselves again by the path that the kernel has for them, so that no loader may be in
front of them; and what they start is the image's, so that no variable may say where libraries are. Each program is
shown as a copy in which the names of its loader and of its folder of libraries are others.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path
import shutil
import stat
import struct
import tempfile
import threading
from typing import Any, BinaryIO

from k2jax.agents.sandbox.interpreter import system_loader
from k2jax.agents.sandbox.types import MountedPath

LOADER, LIBRARIES = "/k2jax/ld", "/k2jax/lib"
"""Where a sandbox on an image has the host's loader and its libraries: both fit where a program names its loader."""
_NAMES = f"{LOADER}\0{LIBRARIES}\0".encode()
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHH")  # of an ELF file; then those of a segment and of a dynamic entry
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_IS_DYNAMIC, _IS_LOADER = 2, 3  # kinds of segments
_TEXTS, _PATH, _DEBUG, _RUNPATH = 5, 15, 21, 29  # kinds of dynamic entries
_MOST = 4096
"""Bytes of a table of a program that are read."""
_lock = threading.Lock()


def linked_programs(folder: str) -> tuple[MountedPath, ...]:
    """What the sandbox of an agent on an image must show beside the folder in which agents are installed.

    Copies of programs are made once and kept below ``$K2JAX_CACHE`` or ``~/.cache/k2jax``. A program that is not linked
    to the host's C library, or says itself where its libraries are, stays as it is.

    Args:
        folder: where agents are installed; it may be empty, as of one that needs no folder.

    Raises:
        UserError: see ``system_loader``.
        OSError: a copy cannot be written.
    """
    with _lock:  # a copy is made once, however many episodes start
        return _linked_programs(os.path.abspath(folder)) if folder else ()


@functools.cache
def _linked_programs(folder: str) -> tuple[MountedPath, ...]:
    loader = system_loader()
    shown = [MountedPath(os.path.realpath(loader), LOADER)]
    shown += [MountedPath(os.path.dirname(shown[0].source), LIBRARIES)]
    for above, _, names in os.walk(folder):
        for path in (os.path.join(above, name) for name in names):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IXUSR:
                with open(path, "rb") as file:
                    changes = _changes(file, loader.encode())
                if changes:
                    shown.append(MountedPath(_copy(path, status, changes), path))
    return tuple(shown)


def _copy(path: str, status: os.stat_result, changes: dict[int, bytes]) -> str:
    """Path of a copy with changes by their places; it is named by all that tells this file from another."""
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, sorted(changes.items()))
    folder = Path(os.environ.get("K2JAX_CACHE") or "~/.cache/k2jax").expanduser() / "agents"
    kept = folder / hashlib.sha256(repr(facts).encode()).hexdigest()
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=folder)
        try:
            with open(path, "rb") as source, open(descriptor, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
                for place, data in changes.items():
                    file.seek(place)
                    file.write(data)
            os.chmod(made, 0o755)
            os.replace(made, kept)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made)
            raise
    return str(kept)


def _changes(file: BinaryIO, loader: bytes) -> dict[int, bytes]:
    """Bytes by their places that link a program to ``LOADER`` and ``LIBRARIES``; none for one that stays as it is.

    The name of its loader makes room for both, and the entry that is a debugger's alone says where the second begins.
    """
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
        return {}
    values = _HEADER.unpack(head)
    found = {}
    for kind, _, place, address, _, length, _, _ in _rows(file, _SEGMENT, values[7], values[12] * _SEGMENT.size):
        found[kind] = place, address, length
    if not {_IS_LOADER, _IS_DYNAMIC} <= set(found):
        return {}
    place, address, length = found[_IS_LOADER]
    if _read(file, place, length) != loader + b"\0":
        return {}
    start, _, size = found[_IS_DYNAMIC]
    entries = {}
    for number, (kind, value) in enumerate(_rows(file, _DYNAMIC, start, size)):
        entries.setdefault(kind, (start + number * _DYNAMIC.size, value))
    if not {_DEBUG, _TEXTS} <= set(entries) or {_PATH, _RUNPATH} & set(entries):
        return {}
    second = (address + len(LOADER) + 1 - entries[_TEXTS][1]) % (1 << 64)  # it lies before the texts, so it wraps
    return {place: _NAMES.ljust(length, b"\0"), entries[_DEBUG][0]: _DYNAMIC.pack(_PATH, second)}


def _rows(file: BinaryIO, row: struct.Struct, place: int, length: int) -> list[tuple[Any, ...]]:
    """The whole rows of a table."""
    data = _read(file, place, length)
    return list(row.iter_unpack(data[: len(data) // row.size * row.size]))


def _read(file: BinaryIO, place: int, length: int) -> bytes:
    file.seek(place)
    return file.read(min(length, _MOST))
