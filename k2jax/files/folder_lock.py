"""A lock on a folder that outlives the deletion of any file in it."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import os
from pathlib import Path

LOCK = ".lock"


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Holds a folder against other processes of this machine; the system lets go of it when the process dies.

    The folder itself is locked, and a file in it: network file systems lock no folders, and a file can be deleted while
    its lock is held, so that the next one to look makes another.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the lock file cannot be made.
    """
    with contextlib.ExitStack() as held:
        for path, flags in ((folder, os.O_RDONLY | os.O_DIRECTORY), (folder / LOCK, os.O_WRONLY | os.O_CREAT)):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if isinstance(error, BlockingIOError) or path != folder:  # else the file system locks no folders
                    raise
        yield
