"""A version on its way: sent from where it is held, received, checked, forwarded and handed to its consumer.

A chunk that has arrived is checked by its checksum, which covers its span from the beginning, and is then given to the
successor and to the consumer at once. A buffer is free again when both have had it, and nothing is received without a
free one: who is slow slows down those before it, up to the source, and nobody's memory grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import queue
import threading
import time
from typing import NamedTuple, Protocol

import xxhash

from k2jax.errors import UserError
from k2jax.files.frames import FrameError, lengths, receive_into
from k2jax.rl.broadcast.buffers import BufferedChunk, Buffers, Relay, StoppedError
from k2jax.rl.broadcast.peers import Address, Peer, text_of
from k2jax.rl.broadcast.pieces import BEAT, BROKEN, CHUNK_RECORD, END, Coming, Manifest, Span, StreamPlace, coming

BUFFERS = 8
"""Buffers of a stream."""
BEAT_SECONDS = 5.0
"""Time after which a sender that has nothing says that it is there."""
TAKEN_SECONDS = 60.0
"""Time after which a successor that takes nothing is dropped."""
ATTACH_SECONDS = 5.0
"""Time in which a successor comes, after which the stream begins without it."""
MOST_FAILURES = 5
"""Failures without a chunk between them after which a stream is given up."""
PAUSE_SECONDS = 0.2
"""Time by which each failure in a row makes the pause after it longer."""
_LONGEST_REASON = 1000


class DamagedError(FrameError):
    """A chunk is not the one that was sent, or not the one that comes next."""


class BrokenError(FrameError):
    """The sender has no more of the version; the message is its own."""


class Memory(Protocol):
    """Reads a version piece by piece."""

    def memory(self, piece: int) -> memoryview:
        """The bytes of a piece; pieces are asked for in order."""

    def check(self, piece: int) -> None:
        """A part of a piece is to be sent; raises UserError where the piece is damaged."""

    def sent(self, piece: int, checksum: int) -> None:
        """A piece was sent whole, with this checksum."""

    def end(self) -> None:
        """Everything was sent; raises UserError where it was not what it should have been."""


class OpenedStream(NamedTuple):
    """A connection on which a stream comes.

    Attributes:
        address: of the other end.
        peer: the connection, from which chunks are read.
        followed: whether a successor is to come before the first chunk is read.
        is_source: whether nobody has what this one has not.
    """

    address: Address
    peer: Peer
    followed: bool
    is_source: bool


def beat(peer: Peer, tag: bytes) -> None:
    """Says that the sender is there and has nothing yet."""
    _send(peer, CHUNK_RECORD.pack(tag, BEAT, 0, 0))


def send_version(peer: Peer, manifest: Manifest, spans: tuple[Span, ...], at: StreamPlace, memory: Memory) -> None:
    """Sends the spans that a receiver wants, from where it is.

    Args:
        peer: the receiver.
        manifest: of the version.
        spans: that it wants.
        at: what it has.
        memory: of the version.

    Raises:
        OSError: the receiver is gone, or takes nothing.
    """
    peer.socket.settimeout(TAKEN_SECONDS)
    sums: xxhash.xxh3_64 | None = None  # of the span under way
    try:
        while (chunk := coming(spans, manifest.chunk, at)) is not None:
            span, is_last = spans[at.span], chunk.after.span > at.span
            is_whole = span == (chunk.piece, 0, manifest.pieces[chunk.piece].bytes)
            if not is_whole and not at.offset:
                memory.check(chunk.piece)
            held, end = memory.memory(chunk.piece), chunk.offset + chunk.bytes
            if sums is None:  # the receiver may have a part of the span
                sums = xxhash.xxh3_64(held[span[1] : chunk.offset])
            sums.update(held[chunk.offset : end])
            record = CHUNK_RECORD.pack(manifest.tag, chunk.piece, chunk.offset, sums.intdigest())
            _send(peer, record, held[chunk.offset : end])
            at = chunk.after
            if is_last and is_whole:
                memory.sent(chunk.piece, sums.intdigest())
            sums = None if is_last else sums
        memory.end()
    except UserError as error:
        _send(peer, CHUNK_RECORD.pack(manifest.tag, BROKEN, 0, 0), memoryview(str(error).encode()[:_LONGEST_REASON]))
        return
    _send(peer, CHUNK_RECORD.pack(manifest.tag, END, 0, 0))


def _send(peer: Peer, record: bytes, data: memoryview | bytes = b"") -> None:
    peer.socket.sendall(lengths(len(record), len(data)) + record)
    if len(data):
        peer.socket.sendall(data)


class StreamReceiver:
    """One stream of a version, on a thread of its own from ``start`` on.

    Args:
        manifest: of the version.
        spans: what is wanted of it.
        opener: connects to somebody who has it: from which place on, and who has failed since the last chunk.
        say: is told of failures that are mended.
        buffers: number of them.
    """

    def __init__(
        self,
        manifest: Manifest,
        spans: tuple[Span, ...],
        opener: Callable[[StreamPlace, set[Address]], OpenedStream],
        say: Callable[[str], None],
        buffers: int = BUFFERS,
    ):
        self.manifest, self.spans = manifest, spans
        self._opener, self._say = opener, say
        self.buffers = Buffers(buffers, manifest.chunk)
        self._consumer = Relay(self.buffers)
        self._successor: Relay | None = None
        self._attaching = threading.Condition()
        self._begun = self._stopped = False
        self._at, self._peer = StreamPlace(), None
        self._sums = xxhash.xxh3_64()  # of the bytes of the span under way that are there
        self._thread = threading.Thread(target=self._run, name="weights received", daemon=True)

    def start(self) -> None:
        """Begins to receive."""
        self._thread.start()

    def close(self) -> None:
        """Receives no more; a successor is left to find another."""
        self._stopped = True
        self.buffers.stop()
        self._consumer.close()
        if (peer := self._peer) is not None:
            peer.close()

    def chunks(self) -> Iterator[tuple[Coming, memoryview]]:
        """What comes, in order; the memory of a chunk is valid until the next one is asked for.

        Raises:
            UserError: the rest cannot be had from anyone.
        """
        while True:
            item = self._consumer.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item.place, item.data
            self.buffers.give(item)

    def attach(self, peer: Peer) -> bool:
        """Forwards everything to a successor and returns when it has all of it or is gone.

        Returns:
            False where the stream has begun or has a successor.
        """
        with self._attaching:
            if self._begun or self._successor is not None:
                return False
            relay = self._successor = Relay(self.buffers)
            self._attaching.notify_all()
        peer.socket.settimeout(TAKEN_SECONDS)
        try:
            peer.tell({})
            self._forward(relay, peer)
        except OSError as error:
            self._say(f"an engine that took its weights from this one is dropped: {error}")
        finally:
            relay.close()
        return True

    def _forward(self, relay: Relay, peer: Peer) -> None:
        while True:
            try:
                item = relay.get(BEAT_SECONDS)
            except queue.Empty:
                beat(peer, self.manifest.tag)
                continue
            if isinstance(item, BufferedChunk):
                try:
                    _send(peer, item.record, item.data)
                finally:
                    self.buffers.give(item)
            else:
                if item is None:
                    _send(peer, CHUNK_RECORD.pack(self.manifest.tag, END, 0, 0))
                return  # the successor finds another where this one has failed

    def _run(self) -> None:
        end: Exception | None = None
        try:
            self._receive()
        except Exception as error:  # for the consumer, which is another thread
            end = error
        with self._attaching:
            self._begun = True
        for relay in (self._consumer, self._successor):
            if relay is not None:
                relay.put(end)

    def _receive(self) -> None:
        failed: set[Address] = set()
        failures, address, is_source = 0, None, False
        while True:
            before = self._at
            try:
                address, self._peer, followed, is_source = self._opener(self._at, failed)
                if self._stopped:
                    raise StoppedError
                self._await_successor(followed)
                self._read()
                return
            except (OSError, FrameError) as error:
                if self._stopped:
                    raise StoppedError from None
                if is_source and isinstance(error, BrokenError):
                    raise UserError(str(error)) from None
                if self._at != before:
                    failed.clear()
                    failures = 0
                failures += 1
                place = text_of(address) if address else "a holder of weights"
                if failures > MOST_FAILURES:
                    raise UserError(f"version {self.manifest.version} of the weights does not come: {error}") from None
                time.sleep(PAUSE_SECONDS * (failures - 1))
                self._say(f"weights from {place}: {error or type(error).__name__}; another is asked for the rest")
                if address is not None:
                    failed.add(address)
            finally:
                if self._peer is not None:
                    self._peer.close()

    def _await_successor(self, followed: bool) -> None:
        with self._attaching:
            if followed and not self._begun:
                self._attaching.wait_for(lambda: self._successor is not None, ATTACH_SECONDS)
            self._begun = True

    def _read(self) -> None:
        """Reads until the end of the version."""
        while True:
            buffer = self.buffers.take()
            chunk = BufferedChunk(coming(self.spans, self.manifest.chunk, self._at), buffer, b"", 1)
            try:
                more = self._next(chunk)
            except BaseException:
                self.buffers.give(chunk)
                raise
            if not more:
                self.buffers.give(chunk)
                return
            successor = self._successor
            chunk.users = 1 if successor is None else 2
            self._consumer.put(chunk)
            if successor is not None:
                successor.put(chunk)

    def _next(self, chunk: BufferedChunk) -> bool:
        """Reads the chunk that is to come; False where it is the end."""
        buffer = chunk.data
        while True:
            record, count = receive_into(self._peer.socket, CHUNK_RECORD.size, buffer)
            if len(record) != CHUNK_RECORD.size:
                raise DamagedError("what came is no chunk")
            tag, piece, offset, checksum = CHUNK_RECORD.unpack(record)
            if tag != self.manifest.tag:
                raise DamagedError("a chunk of another version came")
            if piece == BEAT:
                continue
            if piece == BROKEN:
                raise BrokenError(bytes(buffer[:count]).decode("utf-8", "replace"))
            if piece == END:
                if chunk.place is not None:
                    raise DamagedError("the end came before the last chunk")
                return False
            break
        place = chunk.place
        if place is None or (piece, offset, count) != (place.piece, place.offset, place.bytes):
            raise DamagedError(f"a chunk of {count:,} bytes of piece {piece} came that is not the next one")
        sums = self._sums.copy()
        sums.update(buffer[:count])
        if sums.intdigest() != checksum:
            name = self.manifest.pieces[piece].name
            raise DamagedError(f"the chunk at byte {offset:,} of {name} is damaged")
        chunk.data, chunk.record = buffer[:count], record
        self._sums = xxhash.xxh3_64() if place.after.span > self._at.span else sums
        self._at = place.after
        return True
