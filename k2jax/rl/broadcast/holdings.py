"""Versions that this process can give to others: those of a store in shared memory, and what an engine holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import json
from pathlib import Path
import threading
import time
from typing import Any, Protocol
import zlib

import jax.numpy as jnp
import numpy as np
import xxhash

from k2jax.errors import UserError
from k2jax.inference.weights import EngineWeights
from k2jax.rl.broadcast.pieces import Manifest, Piece, as_bytes
from k2jax.rl.broadcast.streams import BEAT_SECONDS, Memory
from k2jax.rl.sync.stored_weights import locked

POLL_SECONDS = 0.005
"""Time between two looks at a file that is being written."""


class Held(Protocol):
    """A version that can be sent.

    Attributes:
        manifest: of it.
    """

    manifest: Manifest

    def read(self, beat: Callable[[], None]) -> contextlib.AbstractContextManager[Memory]:
        """Reads it; ``beat`` is called now and then while there is nothing yet.

        Raises:
            UserError: it is no longer there.
        """


class StoredVersion:
    """A version of the store of ``rl.sync.checkpoint_engine``, also while it is written.

    Args:
        folder: of the version.
        manifest: of it. Where it is still written, what it will be: the weights of a model have the same names and
            shapes in every version.

    Attributes:
        checked: pieces whose checksums were compared.
    """

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder, self.manifest = folder, manifest
        self.checked: set[int] = set()
        self._damaged = ""

    @contextlib.contextmanager
    def read(self, beat: Callable[[], None]) -> Iterator[Memory]:
        """See ``Held``; the version stays in the store meanwhile."""
        try:
            lock = open(self.folder / "lock")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            raise gone(self.manifest) from None
        with lock:
            if not locked(lock, fcntl.LOCK_SH) or not self.folder.exists():
                raise gone(self.manifest)
            self.check()
            yield _StoredMemory(self, beat)

    def check(self, checksum: int = 0, entry: dict | None = None) -> None:
        """Refuses the version from now on, to everyone, where a piece has another checksum than the store says.

        Raises:
            UserError: the version is damaged.
        """
        if entry is not None and checksum != entry["xxh3"]:
            path = self.folder / entry["file"]
            self._damaged = f"{path} is damaged; restart the trainer, which publishes the weights anew"
        if self._damaged:
            raise UserError(self._damaged)


class _StoredMemory:
    """The files of a version, each when it is whole."""

    def __init__(self, version: StoredVersion, beat: Callable[[], None]):
        self._version, self._folder, self._manifest = version, version.folder, version.manifest
        self._beat = beat
        self._entries: list[dict] | None = None
        self._sent: dict[int, int] = {}
        self._mapped: tuple[int, memoryview] | None = None

    def memory(self, piece: int) -> memoryview:
        """See ``Memory``."""
        if self._mapped is None or self._mapped[0] != piece:
            self._wait(piece)
            size, path = self._manifest.pieces[piece].bytes, self._folder / f"{piece:06d}.bin"
            try:
                data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
            except (FileNotFoundError, ValueError):
                raise gone(self._manifest) from None
            if len(data) != size:
                raise UserError(f"{path} is damaged; restart the trainer, which publishes the weights anew")
            self._mapped = (piece, memoryview(data))
        return self._mapped[1]

    def check(self, piece: int) -> None:
        """See ``Memory``; a piece that is being written was not yet read by anyone."""
        data = self.memory(piece)
        if self._entries is not None and piece not in self._version.checked:
            self._version.check(xxhash.xxh3_64_intdigest(data), self._entries[piece])
            self._version.checked.add(piece)

    def sent(self, piece: int, checksum: int) -> None:
        """See ``Memory``."""
        self._sent[piece] = checksum

    def end(self) -> None:
        """See ``Memory``: what was sent whole is what was written."""
        self._wait(len(self._manifest.pieces))
        entries = self._entries or []
        if tuple(Piece.of_entry(entry) for entry in entries) != self._manifest.pieces:
            raise UserError("the trainer has published other weights than the version before had")
        for piece, checksum in self._sent.items():
            self._version.check(checksum, entries[piece])

    def _wait(self, piece: int) -> None:
        """Waits until a piece is written; a file is whole when the one behind it is there."""
        said = time.monotonic()
        while self._entries is None:
            with contextlib.suppress(FileNotFoundError):
                self._entries = json.loads((self._folder / "manifest.json").read_text())["arrays"]
                return
            if piece < len(self._manifest.pieces) and (self._folder / f"{piece + 1:06d}.bin").exists():
                return
            if not self._folder.exists():
                raise gone(self._manifest)
            if time.monotonic() - said > BEAT_SECONDS:
                self._beat()
                said = time.monotonic()
            time.sleep(POLL_SECONDS)


class EngineVersion:
    """The weights that an engine of this process has, until they are replaced.

    Args:
        manifest: of them, or of the part that one of several sources has.
        weights: of the engine, which must lie on this process's devices.
    """

    def __init__(self, manifest: Manifest, weights: EngineWeights):
        self.manifest, self._weights = manifest, weights
        self._lock = threading.Lock()
        self._withdrawn = False

    def withdraw(self) -> None:
        """They are about to be replaced; returns when nobody reads them any more."""
        with self._lock:
            self._withdrawn = True

    @contextlib.contextmanager
    def read(self, beat: Callable[[], None]) -> Iterator[Memory]:
        """See ``Held``."""
        leaves = self._weights.leaves()
        name: Any = None
        leaf: Any = None
        copied: tuple[int, memoryview] | None = None

        def memory(piece: int) -> memoryview:
            nonlocal name, leaf, copied
            if copied is not None and copied[0] == piece:
                return copied[1]
            wanted = self.manifest.pieces[piece]
            with self._lock:  # no weight is replaced while it is copied
                while name != wanted.name:
                    if self._withdrawn:
                        raise gone(self.manifest)
                    name, leaf = next(leaves)
                if self._withdrawn:
                    raise gone(self.manifest)
                block = tuple(
                    slice(first, first + size) for first, size in zip(wanted.start, wanted.shape, strict=True)
                )
                copied = (piece, as_bytes(np.array(np.asarray(leaf)[block], order="C")))
            return copied[1]

        yield _EngineMemory(memory)


class _EngineMemory:
    """Copies of an engine's weights, one at a time."""

    def __init__(self, memory: Callable[[int], memoryview]):
        self.memory = memory

    def check(self, piece: int) -> None:
        """See ``Memory``; nothing was written that could differ."""

    def sent(self, piece: int, checksum: int) -> None:
        """See ``Memory``."""

    def end(self) -> None:
        """See ``Memory``."""


def engine_manifest(weights: EngineWeights, identity: str, version: int) -> Manifest:
    """What an engine holds, as one version."""
    pieces = []
    for name in weights.names():
        target = weights.target(name if isinstance(name, str) else name[0])
        pieces.append(Piece(name, target.dtype.name, target.shape, (0,) * len(target.shape), target.shape))
    return Manifest(identity, version, tuple(pieces))


def can_give(weights: EngineWeights, manifest: Manifest) -> bool:
    """Whether an engine holds what it was given bit for bit, in the same order, on this process's devices alone."""
    names = dict.fromkeys(piece.name for piece in manifest.pieces)
    ordered = iter(weights.names())
    if not all(name in ordered for name in names):
        return False
    for piece in manifest.pieces:
        target = weights.target(piece.name if isinstance(piece.name, str) else piece.name[0])
        # Layers of a stack that is spread over processes are cut out by a program of all of them.
        if target.dtype != jnp.dtype(piece.dtype) or not target.sharding.is_fully_addressable:
            return False
    return True


def gone(manifest: Manifest) -> UserError:
    """The error of a version that is no longer there."""
    return UserError(f"version {manifest.version} of the weights is no longer there; take the current one")


def checksum(data: bytes) -> int:
    """Of a manifest."""
    return zlib.crc32(data)
