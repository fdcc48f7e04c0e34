"""A store of the current weights in the host's memory, from which engines start without disk and without the trainer.

The checkpoint engine of Kimi K2 (arXiv:2507.20534, section 3.3.2) between one trainer and the engines of its host. A
version is a folder of files, one for each weight or layer, by default in shared memory. It is written beside the
current one, and one rename makes it the current one: a reader finds a whole version at any time, whoever was killed at
whatever moment. Locks of the system, which end with the process that holds them, tell which versions are being read.

```
FOLDER, FOLDER/.lock              held by the trainer
FOLDER/current.json                {"folder": "7-x2k1", "version": 7}
FOLDER/7-x2k1/lock                 held by every reader of this version
FOLDER/7-x2k1/manifest.json        name, shape, dtype, file and XXH3 checksum of every array or shard
FOLDER/7-x2k1/000000.bin, ...
```

Two versions are there while one is written; then the old one is deleted, or as soon as nobody reads it.

Where weights are spread over processes, each has a store of its own with the shards of its devices, and all of them
together hold a version (see ``stored_weights.load_together``). They write at different speeds, so each keeps the one
before until it begins the next: no process can be further behind, since the push of a version to the engine needs all
of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
import contextlib
import fcntl
import json
from pathlib import Path
import shutil
import tempfile
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import xxhash

from k2jax.errors import UserError
from k2jax.files.folder_lock import locked_folder
from k2jax.inference.weights import Leaves, Name
from k2jax.rl.sync.stored_weights import current_of, locked, start_of

SHARED_MEMORY = Path("/dev/shm")


class PublishStats(NamedTuple):
    """One version that was written: its number, wall time and bytes."""

    version: int
    seconds: float
    bytes: int


def store_folder(workdir: Path, process: int | None = None) -> Path:
    """The folder in shared memory that belongs to a run's workdir, or to one of several processes of the run."""
    run = f"k2jax-{xxhash.xxh32_hexdigest(str(workdir.absolute()).encode())}"
    return SHARED_MEMORY / (run if process is None else f"{run}-{process}")


class CheckpointEngine:
    """Writes versions of the weights to a store; one process at a time does.

    Args:
        folder: of the store, see ``store_folder``; made if it is not there.
        keeps_before: whether the version before stays until the next one is begun, for one of several processes.

    Raises:
        UserError: another process writes to the store, or the folder cannot be made.
    """

    def __init__(self, folder: Path, keeps_before: bool = False):
        self.folder, self._keeps_before = folder, keeps_before
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = contextlib.ExitStack()
            self._lock.enter_context(locked_folder(folder))
        except BlockingIOError:
            raise UserError(
                f"another process publishes weights to {folder}; end it, or give this run another workdir"
            ) from None
        except OSError as error:
            raise _not_written(folder, error) from error

    def publish(self, leaves: Leaves, version: int) -> PublishStats:
        """Makes weights the store's current version.

        The copy of an array from its device runs while the array before it is written. No more than three arrays are
        in memory beside the store.

        Args:
            leaves: names and arrays, as of ``Engine.update_params``. Of an array that is spread over processes the
                shards on this process's devices are written.
            version: number of the weights; a run that was resumed may publish lower ones than before.

        Raises:
            UserError: they do not fit into the folder. The version before stays the current one.
        """
        began = time.perf_counter()
        pairs = leaves.items() if hasattr(leaves, "items") else leaves
        if self._keeps_before and (current := current_of(self.folder)) is not None:
            self._delete_others(current["folder"])
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
        if not self._keeps_before:
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


def _write_arrays(folder: Path, pairs: Iterable[tuple[Name, Any]]) -> list[dict]:
    """Writes every array to a file of its own; returns the manifest's entries."""
    entries: list[dict] = []
    writing: deque[Future] = deque()
    with ThreadPoolExecutor(1) as writer:
        for name, leaf, place in _copies_ahead(_pieces(pairs)):
            array, path = np.ascontiguousarray(leaf), folder / f"{len(entries):06d}.bin"
            shape, dtype = list(np.shape(leaf)), array.dtype.name
            entry = {"name": name, "shape": shape, "dtype": dtype, "bytes": array.nbytes, "file": path.name}
            entries.append(entry | place)
            while writing:  # with one array in writing there are at most three in memory
                entries[-2]["xxh3"] = writing.popleft().result()
            writing.append(writer.submit(_write_array, path, array))
            del leaf, array
        for future in writing:
            entries[-1]["xxh3"] = future.result()
    return entries


def _pieces(pairs: Iterable[tuple[Name, Any]]) -> Iterator[tuple[Name, Any, dict[str, list[int]]]]:
    """Names, arrays and nothing; of arrays spread over processes this one's shards, once each, and where they begin."""
    for name, leaf in pairs:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            yield name, leaf, {}
        else:
            shards = {start_of(shard.index): shard.data for shard in leaf.addressable_shards}
            for start, data in sorted(shards.items(), key=lambda item: item[0]):
                yield name, data, {"start": list(start), "of": list(leaf.shape)}
        del leaf


def _copies_ahead(pieces: Iterable[tuple[Name, Any, dict]]) -> Iterator[tuple[Name, Any, dict]]:
    """The pieces; each array's copy to the host has begun before the piece in front of it is used."""
    waiting: deque[tuple[Name, Any, dict]] = deque()
    for name, leaf, place in pieces:
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
        waiting.append((name, leaf, place))
        del leaf
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


def _write_array(path: Path, array: np.ndarray) -> int:
    """Writes an array; returns the checksum of its bytes."""
    memory = array.reshape(-1).view(np.uint8)
    with open(path, "wb") as file:
        file.write(memory)
    return xxhash.xxh3_64_intdigest(memory)


def _write_json(path: Path, value: Any) -> None:
    """Replaces a file at once: others read the old text or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.rename(path)


def _delete_unread(folder: Path) -> None:
    try:
        with open(folder / "lock", "a") as lock:
            if locked(lock, fcntl.LOCK_EX):
                (folder / "manifest.json").unlink(missing_ok=True)  # first: a reader in this moment looks for it
                shutil.rmtree(folder)
    except FileNotFoundError:  # its writer was killed before it made the lock
        shutil.rmtree(folder, ignore_errors=True)


def _not_written(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"the weights could not be written to {folder}: {error.strerror or error}; it needs room for two versions: "
        f"{shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free / 1e9:,.2f} GB "
        "are free"
    )
