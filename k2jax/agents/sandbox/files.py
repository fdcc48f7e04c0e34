"""Reading and writing a sandbox's files from outside, where whatever ran inside may have set traps.

Every path is walked from an open folder, one name at a time, and no symbolic link is followed. A file is looked at
before it is opened, so that opening a pipe or a device cannot block or do anything, and one on which a program holds a
lease is refused, because the kernel would let its reader wait. It is written by replacing it, so that a link in its
place leads nowhere. Reads and listings are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import heapq
import os
import secrets
import stat

from k2jax.agents.sandbox.types import SandboxError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_file(root: int, path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file.

    Args:
        root: descriptor of the sandbox's folder.
        path: relative to it.
        limit: bytes.

    Raises:
        SandboxError: there is no regular file at this path, or a program inside holds a lease on it.
    """
    with _failures(path), _parent_of(root, path) as (folder, name):
        place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise SandboxError(f"{_shown(path)} is no regular file")
            file = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError:
            raise SandboxError(f"{_shown(path)} is held by a lease of a program that still runs") from None
        finally:
            os.close(place)
        with open(file, "rb") as opened:
            return opened.read(limit)


def write_file(root: int, path: str, data: bytes) -> None:
    """Writes a file whole, or not at all; makes the folders above it. They belong to the owner of ``root``.

    Raises:
        SandboxError: a part of the path is no folder, or there is no room.
    """
    owner = os.fstat(root)
    with _failures(path), _parent_of(root, path, make=True) as (folder, name):
        temporary = f".k2jax-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o644, dir_fd=folder), "wb") as file:
                file.write(data)
                _give(file.fileno(), owner)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def list_folder(root: int, path: str, limit: int) -> list[str]:
    """Names in a folder, sorted: the first ``limit``. Bytes that are no UTF-8 are lone surrogates in them.

    Raises:
        SandboxError: there is no folder at this path.
    """
    with _failures(path):
        folder = _walk(root, _names(path), make=False)
        try:
            with os.scandir(folder) as entries:
                return heapq.nsmallest(limit, (entry.name for entry in entries))
        finally:
            os.close(folder)


def _shown(path: str) -> str:
    return ascii(path if len(path) <= 80 else f"{path[:77]}...")


@contextlib.contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        message = (os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)) or "?"
        raise SandboxError(f"{_shown(path)}: {message}") from None


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise SandboxError(f"{_shown(path)}: '..' is not followed")
    return names


@contextlib.contextmanager
def _parent_of(root: int, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """The open folder that holds the last name of a path, and that name."""
    *names, last = _names(path) or [""]
    if not last:
        raise SandboxError(f"{_shown(path)} is no regular file")
    folder = _walk(root, names, make)
    try:
        yield folder, last
    finally:
        os.close(folder)


def _walk(root: int, names: list[str], make: bool) -> int:
    """Descriptor of the folder below ``root``; holds two descriptors at a time, however deep it is."""
    owner = os.fstat(root)
    folder = os.open(".", _FOLDER, dir_fd=root)
    for name in names:
        try:
            made = False
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
                    made = True
            below = os.open(name, _FOLDER, dir_fd=folder)
            if made:
                _give(below, owner)
        finally:
            os.close(folder)
        folder = below
    return folder


def _give(descriptor: int, owner: os.stat_result) -> None:
    """Makes a new file or folder the sandbox's own where this process is root."""
    if os.fstat(descriptor).st_uid != owner.st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
