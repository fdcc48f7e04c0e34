"""Folders of a cache that lies in an object store: one object is written last, and says that the others are there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import shutil

from k2jax.errors import UserError
from k2jax.files.objects.cached_reads import forget_kept, read_kept
from k2jax.files.objects.host_settings import host_settings
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.store_client import store_client

_LAST = {"shards": "manifest.json", "tokenizers": "tokenizer.json.sha256"}
"""Of the folders below these, what is written last."""
_TOGETHER = 8


def is_finished(folder: ObjectPath) -> bool:
    """Whether a folder is in the store as a whole; nobody is asked where this machine has read it before.

    Raises:
        UserError: the store failed for too long.
    """
    try:
        read_kept(_last(folder))
    except FileNotFoundError:
        return False
    return True


def upload(local: Path, folder: ObjectPath) -> None:
    """Copies a finished folder to the store; raises UserError as ``is_finished`` does."""
    last, client = _last(folder), store_client(folder.scheme)
    names = [path.relative_to(local).as_posix() for path in sorted(local.rglob("*")) if path.is_file()]
    if last.name not in names:
        raise UserError(f"{local} has no {last.name}: it is no finished folder of a cache")
    with ThreadPoolExecutor(_TOGETHER) as threads:
        first = [name for name in names if name != last.name]
        list(threads.map(lambda name: client.write((folder / name).place, local / name), first))
    client.write(last.place, local / last.name)


def finish(folder: ObjectPath, built: Callable[[Path], Path]) -> None:
    """Makes a folder of the store: on this machine's disk first, where a kill leaves what is finished.

    Args:
        folder: in the store.
        built: returns the folder of a path, built if it is missing.
    """
    local = built(host_settings().folder / "built" / folder.parent.name / folder.name)
    upload(local, folder)
    is_finished(folder)  # what this machine has made, it need not ask for again
    shutil.rmtree(local, ignore_errors=True)


def local_folder(folder: Path | ObjectPath, made: Callable[[Path, Callable[[Path], None]], Path]) -> Path:
    """A small folder that is read as files, copied to this machine where it lies in a store.

    Args:
        folder: finished.
        made: ``cache.get_or_build``.

    Raises:
        UserError: the store failed for too long, or the disk cannot be written.
    """
    if isinstance(folder, Path):
        return folder

    def download(empty: Path) -> None:
        for path in folder.below():
            to = empty / path.place[len(folder.place) + 1 :]
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())

    return made(host_settings().folder / "copied" / folder.parent.name / folder.name, download)


def forget(folder: ObjectPath) -> None:
    """Has the store asked again whether the folder is there."""
    forget_kept(_last(folder))


def _last(folder: ObjectPath) -> ObjectPath:
    return folder / _LAST[folder.parent.name]
