"""Corpora on this machine that processes read, which keeps others from removing them; a death lets go of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
import weakref

from k2jax.data.manifest import NAME


def mark_in_use(folder: Path, owner: object) -> None:
    """Marks a corpus as read for as long as an object lives, where the file system has locks."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(owner, os.close, descriptor).atexit = False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_in_use(folder: Path) -> bool:
    """Whether a process of this machine reads a corpus."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
