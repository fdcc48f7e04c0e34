"""Cache folders that are built once, appear complete or not at all, and are shared by all processes with the same key.

A folder is built under a hidden temporary name in the same directory and then renamed. A build that was killed leaves
only the temporary folder, which is never read, and which the next build of the same key removes.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import functools
import hashlib
import json
import os
from pathlib import Path
import secrets
import shutil
import socket
import time
from typing import TypeVar

from k2jax.data.retired import refuse_retired
from k2jax.data.stored_folder import finish, is_finished
from k2jax.errors import UserError
from k2jax.files.objects.object_path import ObjectPath, parse_place

Place = TypeVar("Place", Path, ObjectPath)


def cache_root(cache_dir: str) -> Path | ObjectPath:
    """Cache folder, which may lie in a store: the configured one, else ``$K2JAX_CACHE``, else ``~/.cache/k2jax``.

    Raises:
        UserError: it is a URL that names no bucket.
    """
    return parse_place(cache_dir or os.environ.get("K2JAX_CACHE") or "~/.cache/k2jax")


def key_of(description: object) -> str:
    """Key of a JSON-serialisable description: sixteen hexadecimal digits."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def get_or_build(
    folder: Place, build: Callable[[Path], None], *, builder: bool = True, wait_seconds: float = 3600.0
) -> Place:
    """Returns a finished folder, after building it if it is missing.

    Args:
        folder: path of the finished folder, or its place in a store.
        build: fills the empty folder that it receives.
        builder: whether this process builds; the others wait until the folder appears.
        wait_seconds: how long they wait [s].

    Raises:
        UserError: if the cache cannot be written or the folder does not appear in time.
    """
    finished = folder.is_dir if isinstance(folder, Path) else functools.partial(is_finished, folder)
    if builder:
        if finished():
            return folder
        refuse_retired(folder)
        if isinstance(folder, Path):
            _build_and_publish(folder, build)
        else:
            finish(folder, lambda local: get_or_build(local, build))
        return folder
    deadline = time.monotonic() + wait_seconds
    while not finished():
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder} did not appear within {wait_seconds:.0f} s: process 0 builds it, so all processes need "
                "access to the same cache folder and data (set data.cache_dir)"
            )
        time.sleep(min(0.5 if isinstance(folder, Path) else 5.0, wait_seconds / 10))
    return folder


def damaged(path: Path | ObjectPath, damage: str, folder: Path | ObjectPath) -> UserError:
    """The error for a file of a finished folder that is not as it was written."""
    return UserError(f"{path} is {damage}: delete the folder {folder} to have it built again")


def unreadable(path: Path | ObjectPath, error: OSError, folder: Path | ObjectPath) -> UserError:
    """The error for a file of a finished folder that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return damaged(path, "missing", folder)
    return UserError(
        f"{path} cannot be read ({error.strerror}): if the file itself is damaged, delete the folder {folder} to have "
        "it built again"
    )


def _build_and_publish(folder: Path, build: Callable[[Path], None]) -> None:
    temporary = folder.parent / f"{_prefix(folder)}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        temporary.mkdir()
    except OSError as error:
        raise UserError(
            f"cannot write the cache folder {folder.parent}: {error.strerror}; set data.cache_dir"
        ) from None
    try:
        build(temporary)
        _rename(temporary, folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"no room in {folder.parent} ({error.strerror}); make room, or set data.cache_dir to a larger disk"
            ) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError:
        if not folder.is_dir():  # Otherwise another process was first, with equal content for the same key.
            raise


def _prefix(folder: Path) -> str:
    return f".{folder.name}.tmp-{socket.gethostname()}-"


def _remove_abandoned(folder: Path) -> None:
    """Removes temporary folders of this key whose process on this host is gone."""
    for abandoned in folder.parent.glob(f"{_prefix(folder)}*"):
        try:
            os.kill(int(abandoned.name.removeprefix(_prefix(folder)).split("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(abandoned, ignore_errors=True)
        except (ValueError, PermissionError):
            continue
