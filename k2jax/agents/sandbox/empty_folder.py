"""Deletes what a sandbox has left in a folder, following no link and staying in the file system."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 64
"""Folders in each other: each holds a descriptor open."""

_SET_FLAGS = 0x40086602


def empty(folder: Path) -> None:
    """Deletes all that is in a folder, and its own attributes and flags; no process may change it meanwhile.

    Raises:
        OSError: something cannot be deleted, or it is too deep.
    """
    opened = os.open(folder, _FOLDER)
    try:
        for name in os.listxattr(opened):
            os.removexattr(opened, name)
        _clear_flags(opened)
        _empty(opened, 1)
    finally:
        os.close(opened)


def reset(path: Path, mode: int) -> None:
    """Gives a file or folder its mode and new times: a program can hide a message in each."""
    os.chmod(path, mode)
    os.utime(path)


def _clear_flags(folder: int) -> None:
    """Clears what ``chattr`` sets."""
    try:
        fcntl.ioctl(folder, _SET_FLAGS, bytes(4))
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):  # tmpfs has flags since Linux 6.6
            raise


def _empty(folder: int, depth: int) -> None:
    if depth > _DEEPEST:
        raise OSError(errno.ELOOP, "folders are too deep")
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _empty(below, depth + 1)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
