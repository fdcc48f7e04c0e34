"""Gives what a run keeps in its store to receivers on other hosts, each version already while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import json
from pathlib import Path
import sys
import threading

from k2jax import processes
from k2jax.config.schema import Config
from k2jax.rl.broadcast.holdings import StoredVersion
from k2jax.rl.broadcast.peers import Address, make_key, parse_address, read_key, text_of
from k2jax.rl.broadcast.pieces import CHUNK, Manifest, Piece
from k2jax.rl.broadcast.weight_server import WeightServer
from k2jax.rl.sync.stored_weights import current_of

KEY_FILE = "publish.key"
"""In the workdir: the key that engines show, for nobody but the run's user to read."""
WATCH_SECONDS = 0.02
"""Time between two looks at the store."""


class StoreSource:
    """Watches a store and gives its versions, those that were there before left out: they may be of a run before.

    Args:
        folder: of the store.
        listen: host and port.
        key: of the run.
        say: is told of receivers that are lost.
        keeps_before: whether the version before is given too, as where several processes write at different speeds.
        chunk: bytes of a chunk.

    Attributes:
        server: which gives them.
    """

    def __init__(
        self,
        folder: Path,
        listen: Address,
        key: bytes,
        say: Callable[[str], None],
        *,
        keeps_before: bool = False,
        chunk: int = CHUNK,
    ):
        self._folder, self._keeps_before, self._chunk = folder, keeps_before, chunk
        self._old = {path.name for path in folder.iterdir()} if folder.exists() else set()
        self._whole: list[StoredVersion] = []  # the newest first
        self._offered: list[str] = []
        self.server = WeightServer(listen, key, say)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="weights watched", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Gives nothing more, after those who have begun have their version."""
        self._stopped.set()
        self._thread.join()
        self.server.drain()
        self.server.close()

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_SECONDS):
            with contextlib.suppress(FileNotFoundError):  # the store changes while it is looked at
                self._look()

    def _look(self) -> None:
        current = current_of(self._folder)
        newest = None if current is None or current["folder"] in self._old else current["folder"]
        if newest is not None and newest not in [held.folder.name for held in self._whole]:
            folder = self._folder / newest
            entries = json.loads((folder / "manifest.json").read_text())["arrays"]
            manifest = Manifest(newest, current["version"], tuple(map(Piece.of_entry, entries)), self._chunk)
            kept = self._whole[:1] if self._keeps_before else []
            self._whole = [StoredVersion(folder, manifest), *kept]
        offered = [*self._begun(), *self._whole]
        names = [held.folder.name for held in offered]
        if names != self._offered:
            self.server.offer(*offered)
            self._offered = names

    def _begun(self) -> list[StoredVersion]:
        """The version that is being written, where the one before says what it consists of."""
        if not self._whole:
            return []
        known = {*self._old, *(held.folder.name for held in self._whole)}
        begun = [
            path
            for path in self._folder.iterdir()
            if path.name not in known and (path / "000000.bin").exists() and not (path / "manifest.json").exists()
        ]
        if len(begun) != 1:  # a version whose last reader is not done has a manifest still
            return []
        manifest = self._whole[0].manifest
        version = int(begun[0].name.rpartition("-")[0])
        return [StoredVersion(begun[0], manifest._replace(identity=begun[0].name, version=version))]


@contextlib.contextmanager
def published_source(config: Config, workdir: Path, folder: Path) -> Iterator[None]:
    """Gives what this process of a run publishes to receivers, where ``rl.rollout.publish_listen`` is set.

    Raises:
        UserError: it cannot listen there.
    """
    listen = config.rl.rollout.publish_listen
    if not listen:
        yield
        return
    host, port = parse_address(listen, "config.rl.rollout.publish_listen")
    with given_store((host, port + processes.index()), workdir, folder):
        yield


@contextlib.contextmanager
def given_store(listen: Address, workdir: Path, folder: Path) -> Iterator[Address]:
    """Gives the versions of a store to receivers; where it listens.

    Raises:
        UserError: it cannot listen there.
    """
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    if processes.is_first():
        make_key(workdir / KEY_FILE)
    processes.barrier("the key of the weights")
    key, several = read_key(workdir / KEY_FILE), processes.count() > 1
    source = StoreSource(folder, listen, key, say, keeps_before=several)
    say(f"weights for engines of other hosts at {text_of(source.server.address)}, with the key {workdir / KEY_FILE}")
    try:
        yield source.server.address
    finally:
        source.close()
