"""Versions of a run on other hosts as a source of weights for an engine of this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import json
import threading
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from k2jax.errors import UserError, abbreviate
from k2jax.files.frames import FrameError
from k2jax.inference.weights import EngineWeights, Name
from k2jax.rl.broadcast.holdings import EngineVersion, can_give, checksum
from k2jax.rl.broadcast.peers import (
    EVERY_INTERFACE,
    Address,
    Peer,
    WeightsRefusedError,
    checked_address,
    text_of,
)
from k2jax.rl.broadcast.pieces import Manifest, Span, StreamPlace, digest
from k2jax.rl.broadcast.shares import ArrayPlan, Box, SharePlan, assembled, plan_of
from k2jax.rl.broadcast.streams import BUFFERS, OpenedStream, StreamReceiver
from k2jax.rl.broadcast.weight_server import WeightServer

_LEAST_BUFFERS = 2
_MOST_VERSIONS = 3  # that a source has: one that is written, the current one, the one before
_NONE = np.iinfo(np.int32).min  # in place of a version
_TRIES, _RETRY_SECONDS = 200, 0.05  # of processes that have no version in common, since some look later than others


class ReceivedWeights:
    """Takes versions from the processes of a run, or from an engine that has them, and gives them on.

    Each process of an engine that is spread over several has one, takes what its devices hold, and loads when the
    others do.

    Args:
        addresses: of the sources, one for each process of the run; of an engine its own alone.
        key: of the run.
        weights: of the engine, which says what is needed of each array.
        say: is told of failures that are mended.
        listen: where this engine gives its weights to others; None is any port of the interface that reaches the first
            source.

    Attributes:
        loaded: as of ``k2jax.serve.following.WeightSource``.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        key: bytes,
        weights: EngineWeights,
        say: Callable[[str], None],
        listen: Address | None = None,
    ):
        self._sources = [_Source(address, key) for address in addresses]
        self._key, self._weights, self._say, self._listen = key, weights, say, listen
        self._server: WeightServer | None = None
        self._held: list[EngineVersion] = []
        self._streams: list[StreamReceiver] = []
        self.loaded: Hashable | None = None

    def current(self) -> Hashable | None:
        """See ``WeightSource``.

        Raises:
            OSError: a source does not answer.
        """
        found = self._common()
        return None if not found else next(iter(found.values()))

    def load(self) -> tuple[int, Iterator[tuple[Name, Any]]]:
        """See ``WeightSource``."""
        try:
            version, identities = self._agreed()
            asked = zip(self._sources, identities, strict=True)
            manifests = [source.manifest(identity) for source, identity in asked]
        except OSError as error:
            raise UserError(str(error)) from None
        plan = plan_of(manifests, self._weights)
        self.loaded = identities
        return version, self._arrays(manifests, plan)

    def close(self) -> None:
        """See ``WeightSource``; gives nothing to others any more, too."""
        for stream in self._streams:
            stream.close()
        for held in self._held:
            held.withdraw()
        if self._server is not None:
            self._server.close()
        for source in self._sources:
            source.close()

    def _places(self) -> str:
        return ", ".join(text_of(source.address) for source in self._sources)

    def _common(self) -> dict[int, tuple[str, ...]]:
        """The numbers that all sources have, the newest first, and what each source calls them."""
        held = [source.versions() for source in self._sources]
        common: dict[int, tuple[str, ...]] = {}
        for _, number in held[0]:
            identities = [next((name for name, each in versions if each == number), None) for versions in held]
            if None not in identities:
                common.setdefault(number, tuple(identities))
        return common

    def _agreed(self) -> tuple[int, tuple[str, ...]]:
        """The version to load, the same in all processes of an engine.

        Raises:
            UserError: there is none, in every process.
            OSError: a source does not answer this process; the others are told.
        """
        alone = self._is_alone()
        for _ in range(1 if alone else _TRIES):
            try:
                common, error = self._common(), None
            except OSError as refused:
                common, error = {}, refused
            everyone = np.array([[*common, *[_NONE] * _MOST_VERSIONS][:_MOST_VERSIONS]], np.int32)
            if not alone:
                everyone = multihost_utils.process_allgather(everyone[0])
            if error is not None:
                raise error
            numbers = [int(each) for each in everyone[0] if each != _NONE and (everyone == each).any(1).all()]
            if numbers:
                return numbers[0], common[numbers[0]]
            if (everyone == _NONE).all(1).any():
                break
            time.sleep(_RETRY_SECONDS)
        raise UserError(f"no whole weights at {self._places()}; the trainer publishes there when it starts")

    def _is_alone(self) -> bool:
        """Whether the engine's devices are all of this process."""
        name = next(iter(self._weights.names()))
        return self._weights.target(name if isinstance(name, str) else name[0]).sharding.is_fully_addressable

    def _arrays(self, manifests: list[Manifest], plan: SharePlan) -> Iterator[tuple[Name, Any]]:
        server = self._withdraw()
        wants = {number: spans for number, spans in enumerate(plan.spans) if spans}
        groups = {number: (manifests[number].identity, digest(spans)) for number, spans in wants.items()}
        count = max(_LEAST_BUFFERS, BUFFERS // max(1, len(wants)))
        streams = {
            number: StreamReceiver(
                manifests[number], spans, self._opener(number, groups[number], spans), self._say, count
            )
            for number, spans in wants.items()
        }
        self._streams = list(streams.values())
        with server.passing({groups[number]: stream for number, stream in streams.items()}):
            for stream in streams.values():
                stream.start()
            arrays = assembled(plan, {number: stream.chunks() for number, stream in streams.items()})
            with ThreadPoolExecutor(1, "weights assembled") as ahead:
                try:
                    yield from self._placed(arrays, ahead)
                finally:
                    for stream in streams.values():
                        stream.close()
                    self._streams = []
        self._give(server, manifests, groups)

    def _placed(
        self, arrays: Iterator[tuple[ArrayPlan, dict[Box, np.ndarray]]], ahead: ThreadPoolExecutor
    ) -> Iterator[tuple[Name, Any]]:
        """The arrays; each is put together while the engine takes the one in front of it to its devices."""
        coming = ahead.submit(next, arrays, None)
        while (item := coming.result()) is not None:
            coming = ahead.submit(next, arrays, None)
            array, memory = item
            del item
            if list(memory) == [tuple((0, size) for size in array.shape)]:
                yield array.name, memory.popitem()[1]
                continue
            name = array.name if isinstance(array.name, str) else array.name[0]
            sharding = self._weights.target(name).sharding
            yield array.name, jax.make_array_from_callback(array.shape, sharding, _block_of(array.shape, memory))
            del memory

    def _withdraw(self) -> WeightServer:
        """Gives the engine's weights no longer, since they are about to be replaced."""
        if self._server is None:
            host = self._sources[0].local_host()
            self._server = WeightServer(self._listen or (host, 0), self._key, self._say)
        self._server.lend()
        for held in self._held:
            held.withdraw()
        self._held = []
        return self._server

    def _announced(self) -> Address:
        """Where others reach this engine."""
        host, port = self._server.address
        return (self._sources[0].local_host() if host in EVERY_INTERFACE else host), port

    def _give(self, server: WeightServer, manifests: list[Manifest], groups: dict[int, tuple[str, str]]) -> None:
        """Gives what the engine has now to others, where it has it bit for bit."""
        if not all(can_give(self._weights, manifest) for manifest in manifests):
            return
        self._held = [EngineVersion(manifest, self._weights) for manifest in manifests]
        if len(manifests) == 1:
            server.offer(*self._held)
        else:
            server.lend(*self._held)
        for number, (identity, want) in groups.items():
            with contextlib.suppress(OSError):  # who asks next is told by its next question
                self._sources[number].ask("holds", identity=identity, want=want, listen=self._announced())

    def _opener(
        self, number: int, group: tuple[str, str], spans: tuple[Span, ...]
    ) -> Callable[[StreamPlace, set[Address]], OpenedStream]:
        """Connects a stream to whom the source names."""
        source, identity, want = self._sources[number], *group
        joined = False

        def opened(at: StreamPlace, failed: set[Address]) -> OpenedStream:
            nonlocal joined
            values = {"identity": identity, "want": want}
            if joined:
                answer, _ = source.ask("rejoin", **values, failed=list(failed))
            else:
                answer, _ = source.ask("join", **values, listen=self._announced())
            joined = True
            named, live = answer.get("parent"), answer.get("live") is True
            try:
                parent = source.address if named is None else checked_address(named)
            except (ValueError, TypeError):
                raise FrameError(f"{text_of(source.address)} names {abbreviate(named)}, which is no address") from None
            try:
                peer = Peer.call(parent, self._key)
                peer.ask("stream", json.dumps(spans).encode(), identity=identity, live=live, at=at)
            except (OSError, FrameError, WeightsRefusedError) as error:
                if isinstance(error, WeightsRefusedError) and named is None:
                    raise
                failed.add(parent)
                raise FrameError(f"{text_of(parent)}: {error}") from None
            return OpenedStream(parent, peer, answer.get("followed") is True, named is None)

        return opened


def _block_of(shape: tuple[int, ...], memory: dict[Box, np.ndarray]) -> Callable[[tuple[slice, ...]], np.ndarray]:
    """The block for a device."""
    return lambda index: memory[tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))]


class _Source:
    """A connection to a source, made anew when it was lost."""

    def __init__(self, address: Address, key: bytes):
        self.address, self._key = address, key
        self._peer: Peer | None = None
        self._host = ""
        self._lock = threading.Lock()

    def ask(self, question: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        """Asks the source; raises ConnectionError where it does not answer, WeightsRefusedError where it refuses."""
        with self._lock:
            try:
                if self._peer is None:
                    self._peer = Peer.call(self.address, self._key)
                    self._host = self._peer.socket.getsockname()[0]
                return self._peer.ask(question, **values)
            except WeightsRefusedError:
                raise
            except (OSError, FrameError) as error:
                if self._peer is not None:
                    self._peer.close()
                self._peer = None
                raise ConnectionError(f"{text_of(self.address)} does not answer: {error}") from None

    def local_host(self) -> str:
        """The address of this machine on the way to the source."""
        return self._host

    def versions(self) -> list[tuple[str, int]]:
        """Identities and numbers of the versions that it has, the newest first."""
        answer, _ = self.ask("current")
        versions = answer.get("versions")
        if not isinstance(versions, list) or not all(
            isinstance(each, list) and [type(part) for part in each] == [str, int] for each in versions
        ):
            raise ConnectionError(f"{text_of(self.address)} says {abbreviate(answer)}, which are no versions")
        return [tuple(each) for each in versions]

    def manifest(self, identity: str) -> Manifest:
        """What a version consists of."""
        answer, text = self.ask("manifest", identity=identity)
        if answer.get("crc32") != checksum(text):
            raise UserError(f"the manifest that {text_of(self.address)} sent is damaged")
        manifest = Manifest.parse(text)
        if manifest.identity != identity:
            raise UserError(f"{text_of(self.address)} sent the manifest of another version")
        return manifest

    def close(self) -> None:
        """Leaves the source."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
