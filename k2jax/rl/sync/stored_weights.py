"""Reading weights from the store of the checkpoint engine, in one process or in several that share them.

See ``checkpoint_engine`` for the store. A reader holds a lock of the version it reads, which the writer then leaves
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import itertools
import json
from pathlib import Path
import time
from typing import IO, Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import xxhash

from k2jax.errors import UserError
from k2jax.inference.weights import Name

Target = Callable[[str], jax.ShapeDtypeStruct]
"""Shape and sharding of a weight, or of one of its layers, by the weight's name: ``EngineWeights.target``."""
RETRY_SECONDS = 0.01
CHANGE_SECONDS = 10.0
"""For so long a reader tries to get hold of a version when the current one changes again and again."""
_NEWEST = 2  # versions that a store keeps
_NONE = -1  # in place of a version


def load_current(folder: Path) -> tuple[int, Iterator[tuple[Name, np.ndarray]]]:
    """The current version of a store of one process and its weights, for ``Engine.update_params``.

    The version stays there until the iterator is used up or closed, whatever the trainer publishes meanwhile. Arrays
    are views of the store's memory, which the next one replaces.

    Args:
        folder: of the store.

    Raises:
        UserError: there is no version, or, while arrays are read, one is damaged.
    """
    began = time.monotonic()
    while True:
        opened = _open_current(folder)
        if opened is not None:
            return opened.version, opened.arrays()
        # Where there is a current version, it changed in this moment.
        if not (folder / "current.json").exists() or time.monotonic() - began >= CHANGE_SECONDS:
            raise UserError(f"no whole weights in {folder}; the trainer publishes there when it starts")
        time.sleep(RETRY_SECONDS)


def load_together(folder: Path, target: Target) -> tuple[int, Iterator[tuple[Name, Any]]]:
    """A version that all processes of an engine have, and its weights, for ``Engine.update_params``.

    Every process calls it with the store of its own place in the run. A version of which a trainer's process was killed
    before it had written its part is passed over: all have the one before.

    Args:
        folder: of this process's store.
        target: of the engine's weights; its mesh is the one whose weights were published.

    Raises:
        UserError: in all processes, where they have no version in common; or, while arrays are read, one is damaged or
            belongs to another mesh.
    """
    began = time.monotonic()
    while True:
        held = {version.version: version for version in _newest(folder)}
        mine = [*held, _NONE, _NONE][:_NEWEST]
        is_late = time.monotonic() - began >= CHANGE_SECONDS
        everyone = multihost_utils.process_allgather(np.array([*mine, is_late], np.int32))
        agreed = _common(everyone[:, :-1])
        for version in held.keys() - {agreed}:
            held[version].close()
        if agreed is not None:
            return agreed, held[agreed].arrays(target)
        if everyone[:, -1].any():
            raise UserError(f"{folder} and the stores of the other processes have no version of the weights in common")
        time.sleep(RETRY_SECONDS)


def _common(versions_PN: np.ndarray) -> int | None:
    """The version that every process has, by the first one's order; None where there is none."""
    shared = [int(version) for version in versions_PN[0] if (versions_PN == version).any(1).all()]
    return next((version for version in shared if version != _NONE), None)


def _newest(folder: Path) -> list[_OpenVersion]:
    """The current version and the one before it, as far as they are there."""
    current, written = current_of(folder), {}
    for manifest in folder.glob("*/manifest.json"):
        with contextlib.suppress(FileNotFoundError):  # it is being deleted
            is_current = current is not None and manifest.parent.name == current["folder"]
            written[manifest.parent] = (is_current, manifest.stat().st_mtime_ns)
    newest = sorted(written, key=written.get, reverse=True)[:_NEWEST]
    return [version for path in newest if (version := _open(path)) is not None]


def current_of(folder: Path) -> dict[str, Any] | None:
    """What the store says of its current version: ``folder`` and ``version``; None before the first."""
    try:
        return json.loads((folder / "current.json").read_text())
    except FileNotFoundError:
        return None


class _OpenVersion:
    """A version that stays until it is closed or read to its end."""

    def __init__(self, folder: Path, lock: IO):
        self._folder, self._lock = folder, lock
        manifest = json.loads((folder / "manifest.json").read_text())
        self.version: int = manifest["version"]
        self._entries: list[dict] = manifest["arrays"]

    def close(self) -> None:
        self._lock.close()

    def arrays(self, target: Target | None = None) -> Iterator[tuple[Name, Any]]:
        """Names and arrays; of spread ones those of ``target``, made of this store's shards."""
        with self._lock:
            for key, group in itertools.groupby(self._entries, lambda entry: entry["name"]):
                entries, name = list(group), key if isinstance(key, str) else tuple(key)
                parts = [_read_array(self._folder / entry["file"], entry) for entry in entries]
                if "start" not in entries[0]:
                    yield name, parts[0]
                elif target is None:
                    raise UserError(f"{self._folder} holds one process's shards of the weights; use load_together")
                else:
                    starts = [tuple(entry["start"]) for entry in entries]
                    yield name, _joined(name, entries[0]["of"], dict(zip(starts, parts, strict=True)), target)


def _joined(name: Name, shape: list[int], parts: dict[tuple[int, ...], np.ndarray], target: Target) -> jax.Array:
    """An array over the devices of all processes, of which this one has the parts by their first element."""
    sharding = target(name if isinstance(name, str) else name[0]).sharding
    wanted = sharding.addressable_devices_indices_map(tuple(shape)).values()
    extents = {start_of(index): tuple(sharding.shard_shape(tuple(shape))) for index in wanted}
    if extents != {start: part.shape for start, part in parts.items()}:
        raise UserError(f"the store has other shards of {name} than this engine; give it the mesh of the run's engine")
    return jax.make_array_from_callback(tuple(shape), sharding, lambda index: parts[start_of(index)])


def start_of(index: tuple[slice, ...]) -> tuple[int, ...]:
    """The place of a shard's first element in its array."""
    return tuple(part.start or 0 for part in index)


def _open_current(folder: Path) -> _OpenVersion | None:
    """The current version; None if there is none or it is being deleted."""
    current = current_of(folder)
    return None if current is None else _open(folder / current["folder"])


def _open(version_folder: Path) -> _OpenVersion | None:
    try:
        lock = open(version_folder / "lock")  # noqa: SIM115 - held by the reader
    except FileNotFoundError:
        return None
    # Locked too late, it is the lock of a folder that is gone.
    if locked(lock, fcntl.LOCK_SH) and (version_folder / "manifest.json").exists():
        return _OpenVersion(version_folder, lock)
    lock.close()
    return None


def _read_array(path: Path, entry: dict) -> np.ndarray:
    memory = np.memmap(path, np.uint8, "r") if entry["bytes"] else np.zeros(0, np.uint8)
    if len(memory) != entry["bytes"] or xxhash.xxh3_64_intdigest(memory) != entry["xxh3"]:
        raise UserError(f"{path} is damaged; restart the trainer, which publishes the weights anew")
    return memory.view(jnp.dtype(entry["dtype"])).reshape(entry["shape"])


def locked(file: IO, kind: int) -> bool:
    """Takes a lock unless another process is in the way."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
