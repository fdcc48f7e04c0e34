"""A store of the current weights in the host's memory, from which engines start without disk and without the trainer.

The checkpoint engine of Kimi K2 (arXiv:2507.20534, section 3.3.2) between one trainer and the engines of its host. A
version is a folder of files, one for each weight or layer, by default in shared memory. It is written beside the
current one, and one rename makes it the current one: a reader finds a whole version at any time, whoever was killed at
whatever moment. Locks of the system, which end with the process that holds them, tell which versions are being read.

```
FOLDER/writer.lock                 held by the trainer
FOLDER/current.json                {"folder": "7-x2k1", "version": 7}
FOLDER/7-x2k1/lock                 held by every reader of this version
FOLDER/7-x2k1/manifest.json        name, shape, dtype, file and CRC-32 of every array
FOLDER/7-x2k1/000000.bin, ...
```

Two versions are there while one is written; then the old one is deleted, or as soon as nobody reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
import fcntl
import json
from pathlib import Path
import shutil
import tempfile
import time
from typing import IO, Any, NamedTuple
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.errors import UserError
from k2jax.inference.weights import Leaves, Name

SHARED_MEMORY = Path("/dev/shm")
RETRY_SECONDS = 0.01
CHANGE_SECONDS = 10.0
"""For so long a reader tries to get hold of a version when the current one changes again and again."""


class PublishStats(NamedTuple):
    """One version that was written: its number, wall time and bytes."""

    version: int
    seconds: float
    bytes: int


def store_folder(workdir: Path) -> Path:
    """The folder in shared memory that belongs to a run's workdir."""
    return SHARED_MEMORY / f"k2jax-{zlib.crc32(str(workdir.absolute()).encode()):08x}"


class CheckpointEngine:
    """Writes versions of the weights to a store; one process at a time does.

    Args:
        folder: of the store, see ``store_folder``; made if it is not there.

    Raises:
        UserError: another process writes to the store, or the folder cannot be made.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / "writer.lock", "a")  # noqa: SIM115 - held until close
        except OSError as error:
            raise _not_written(folder, error) from error
        if not _locked(self._lock, fcntl.LOCK_EX):
            self._lock.close()
            raise UserError(f"another process publishes weights to {folder}; end it, or give this run another workdir")

    def publish(self, leaves: Leaves, version: int) -> PublishStats:
        """Makes weights the store's current version.

        The copy of an array from its device runs while the array before it is written. No more than three arrays are
        in memory beside the store.

        Args:
            leaves: names and arrays, as of ``Engine.update_params``; every process must be able to read them whole.
            version: number of the weights; a run that was resumed may publish lower ones than before.

        Raises:
            UserError: they do not fit into the folder. The version before stays the current one.
        """
        began = time.perf_counter()
        pairs = leaves.items() if hasattr(leaves, "items") else leaves
        try:
            new = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=self.folder))
            try:
                (new / "lock").touch()
                arrays = _write_arrays(new, pairs)
                _write_json(new / "manifest.json", {"version": version, "arrays": arrays})
                _write_json(self.folder / "current.json", {"version": version, "folder": new.name})
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
        except OSError as error:
            raise _not_written(self.folder, error) from error
        self._delete_others(new.name)
        return PublishStats(version, time.perf_counter() - began, sum(entry["bytes"] for entry in arrays))

    def remove(self) -> None:
        """Deletes the store, to give its memory back; engines that are reading it come to their end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Lets another process write. The store stays, so that engines can start when the trainer is gone."""
        self._lock.close()

    def _delete_others(self, current: str) -> None:
        """Deletes versions that nobody reads, and what writers that were killed have left."""
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder.name != current:
                _delete_unread(folder)


def load_current(folder: Path, timeout: float = 0.0) -> tuple[int, Iterator[tuple[Name, np.ndarray]]]:
    """The current version of a store and its weights, for ``Engine.update_params``.

    The version stays there until the iterator is used up or closed, whatever the trainer publishes meanwhile. Arrays
    are views of the store's memory, which the next one replaces.

    Args:
        folder: of the store.
        timeout: time to wait for a first version [s].

    Raises:
        UserError: there is no version, or, while arrays are read, one is damaged.
    """
    began = time.monotonic()
    while True:
        opened = _open_current(folder)
        if opened is not None:
            version_folder, lock = opened
            manifest = json.loads((version_folder / "manifest.json").read_text())
            return manifest["version"], _arrays(version_folder, manifest["arrays"], lock)
        # Where there is a current version, it changed in this moment.
        patience = max(timeout, CHANGE_SECONDS) if (folder / "current.json").exists() else timeout
        if time.monotonic() - began >= patience:
            raise UserError(f"no whole weights in {folder}; the trainer publishes there when it starts")
        time.sleep(RETRY_SECONDS)


def current_version(folder: Path) -> int | None:
    """Number of the store's current version, to see whether there is a new one; None before the first."""
    current = _current(folder)
    return None if current is None else current["version"]


def _current(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / "current.json").read_text())
    except FileNotFoundError:
        return None


def _open_current(folder: Path) -> tuple[Path, IO] | None:
    """The folder of the current version and a lock that keeps it; None if there is none or it is being deleted."""
    current = _current(folder)
    if current is None:
        return None
    version_folder = folder / current["folder"]
    try:
        lock = open(version_folder / "lock")  # noqa: SIM115 - held by the reader
    except FileNotFoundError:
        return None
    # Locked too late, it is the lock of a folder that is gone.
    if _locked(lock, fcntl.LOCK_SH) and (version_folder / "manifest.json").exists():
        return version_folder, lock
    lock.close()
    return None


def _arrays(folder: Path, entries: list[dict], lock: IO) -> Iterator[tuple[Name, np.ndarray]]:
    with lock:
        for entry in entries:
            name = entry["name"] if isinstance(entry["name"], str) else tuple(entry["name"])
            yield name, _read_array(folder / entry["file"], entry)


def _read_array(path: Path, entry: dict) -> np.ndarray:
    memory = np.memmap(path, np.uint8, "r") if entry["bytes"] else np.zeros(0, np.uint8)
    if len(memory) != entry["bytes"] or zlib.crc32(memory) != entry["crc32"]:
        raise UserError(f"{path} is damaged; restart the trainer, which publishes the weights anew")
    return memory.view(jnp.dtype(entry["dtype"])).reshape(entry["shape"])


def _write_arrays(folder: Path, pairs: Iterable[tuple[Name, Any]]) -> list[dict]:
    """Writes every array to a file of its own; returns the manifest's entries."""
    entries: list[dict] = []
    writing: deque[Future] = deque()
    with ThreadPoolExecutor(1) as writer:
        for name, leaf in _copies_ahead(pairs):
            array, path = np.ascontiguousarray(leaf), folder / f"{len(entries):06d}.bin"
            shape, dtype = list(np.shape(leaf)), array.dtype.name
            entries.append({"name": name, "shape": shape, "dtype": dtype, "bytes": array.nbytes, "file": path.name})
            while writing:  # with one array in writing there are at most three in memory
                entries[-2]["crc32"] = writing.popleft().result()
            writing.append(writer.submit(_write_array, path, array))
            del leaf, array
        for future in writing:
            entries[-1]["crc32"] = future.result()
    return entries


def _copies_ahead(pairs: Iterable[tuple[Name, Any]]) -> Iterator[tuple[Name, Any]]:
    """The pairs; each array's copy to the host has begun before the pair in front of it is used."""
    waiting: deque[tuple[Name, Any]] = deque()
    for name, leaf in pairs:
        if isinstance(leaf, jax.Array):
            if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
                raise UserError(f"weight {name} is spread over processes; publish it from an engine on one host")
            leaf.copy_to_host_async()
        waiting.append((name, leaf))
        del leaf
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


def _write_array(path: Path, array: np.ndarray) -> int:
    """Writes an array; returns the CRC-32 of its bytes."""
    memory = array.reshape(-1).view(np.uint8)
    with open(path, "wb") as file:
        file.write(memory)
    return zlib.crc32(memory)


def _write_json(path: Path, value: Any) -> None:
    """Replaces a file at once: others read the old text or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.rename(path)


def _delete_unread(folder: Path) -> None:
    try:
        with open(folder / "lock", "a") as lock:
            if _locked(lock, fcntl.LOCK_EX):
                (folder / "manifest.json").unlink(missing_ok=True)  # first: a reader in this moment looks for it
                shutil.rmtree(folder)
    except FileNotFoundError:  # its writer was killed before it made the lock
        shutil.rmtree(folder, ignore_errors=True)


def _locked(file: IO, kind: int) -> bool:
    """Takes a lock unless another process is in the way."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _not_written(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"the weights could not be written to {folder}: {error.strerror or error}; it needs room for two versions: "
        f"{shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free / 1e9:,.2f} GB "
        "are free"
    )
