"""Gives versions of the weights to receivers of other hosts: what is held here, and what passes through here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import socket
import threading
import time
from typing import Any

from k2jax.errors import UserError
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.frames import FrameError
from k2jax.rl.broadcast.holdings import Held, checksum
from k2jax.rl.broadcast.peers import Address, Peer, checked_address
from k2jax.rl.broadcast.pieces import StreamPlace, digest
from k2jax.rl.broadcast.rounds import Group, Parent, Rounds
from k2jax.rl.broadcast.streams import ATTACH_SECONDS, StreamReceiver, beat, send_version

MOST_CONNECTIONS = 1024
"""Connections at a time; more wait."""

IDLE_SECONDS = 600.0
"""Time without a question after which a receiver is taken for gone."""

DRAIN_SECONDS = 120.0
"""Longest wait for receivers at the end."""
CALM_SECONDS = 1.0
"""Time without a stream after which they are taken to be done."""


class WeightServer:
    """Answers receivers, each on a thread of its own.

    Args:
        listen: host and port; port 0 is any that is free.
        key: of the run.
        say: is told of receivers that are lost.

    Attributes:
        address: where it listens.

    Raises:
        UserError: it cannot listen there.
    """

    def __init__(self, listen: Address, key: bytes, say: Callable[[str], None]):
        try:
            family = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server(listen, family=family, backlog=512)
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot listen on {listen[0]}:{listen[1]} for receivers of weights: {error}") from None
        self.address: Address = (listen[0], self._listener.getsockname()[1])
        self._key, self._say = key, say
        self._rounds = Rounds()
        self._held: dict[str, Held] = {}
        self._offered: tuple[str, ...] = ()
        self._receiving: dict[Group, StreamReceiver] = {}
        self._changed = threading.Condition()
        self._peers: set[Peer] = set()
        self._streams = 0
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._thread = threading.Thread(target=self._accept, name="weights given", daemon=True)
        self._thread.start()

    def offer(self, *versions: Held) -> None:
        """Gives these versions from now on, the newest first, and says so to who asks; no others."""
        with self._changed:
            self._offered = tuple(version.manifest.identity for version in versions)
            self._held = {version.manifest.identity: version for version in versions}

    def lend(self, *versions: Held) -> None:
        """Gives these versions to whom a source sends here, and no others."""
        with self._changed:
            self._offered, self._held = (), {version.manifest.identity: version for version in versions}

    @contextlib.contextmanager
    def passing(self, streams: dict[Group, StreamReceiver]) -> Iterator[None]:
        """Lets successors take what streams receive."""
        with self._changed:
            self._receiving |= streams
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                for group, stream in streams.items():
                    if self._receiving.get(group) is stream:
                        del self._receiving[group]

    def drain(self) -> None:
        """Offers nothing any more, and returns when those who have begun have all of what they take."""
        with self._changed:
            self._offered = ()
            until = time.monotonic() + DRAIN_SECONDS
            while self._peers and (left := until - time.monotonic()) > 0:
                # A receiver that has asked for its place opens another connection a moment later.
                if not self._changed.wait_for(lambda: self._streams or not self._peers, min(left, CALM_SECONDS)):
                    return
                self._changed.wait_for(lambda: not self._streams, left)

    def close(self) -> None:
        """Gives nothing more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._changed:
            peers = list(self._peers)
        for peer in peers:
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._room.acquire()
            threading.Thread(target=self._serve, args=(connection,), name="weights given", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        peer, members = None, set()
        try:
            peer = Peer(connection, self._key, called=False)
            with self._changed:
                self._peers.add(peer)
            peer.socket.settimeout(IDLE_SECONDS)
            while True:
                record, payload = peer.hear()
                if not self._answer(peer, record, payload, members):
                    return
        except (OSError, FrameError, UserError):  # it is gone, or none of ours
            pass
        finally:
            for address in members:
                self._rounds.gone(address)
            if peer is not None:
                with self._changed:
                    self._peers.discard(peer)
                    self._changed.notify_all()
                peer.close()
            self._room.release()

    def _answer(self, peer: Peer, record: dict[str, Any], payload: bytes, members: set[Address]) -> bool:
        """Answers a question; False where nothing else comes on this connection."""
        question = record.get("ask")
        try:
            if question == "current":
                with self._changed:
                    held = [self._held[identity].manifest for identity in self._offered]
                peer.tell({"versions": [[each.identity, each.version] for each in held]})
            elif question == "manifest":
                text = self._held_version(record).manifest.dump()
                peer.tell({"crc32": checksum(text)}, text)
            elif question in ("join", "rejoin"):
                parent = self._parent(question, record)
                peer.tell({"parent": parent.address, "live": parent.live, "followed": parent.followed})
            elif question == "holds":
                address = checked_address(record["listen"])
                members.add(address)
                self._rounds.holds(_group(record), address)
                peer.tell({})
            elif question == "stream":
                with self._streaming():
                    self._stream(peer, record, payload)
                return False
            else:
                raise ValueError("no such question")
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"what came is no question: {error}") from None
        except UserError as error:
            peer.tell({"refused": str(error)})
        return True

    @contextlib.contextmanager
    def _streaming(self) -> Iterator[None]:
        with self._changed:
            self._streams += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._streams -= 1
                self._changed.notify_all()

    def _held_version(self, record: dict[str, Any]) -> Held:
        with self._changed:
            held = self._held.get(record["identity"])
        if held is None:
            raise UserError("that version of the weights is no longer there; take the current one")
        return held

    def _parent(self, question: str, record: dict[str, Any]) -> Parent:
        if question == "join":
            return self._rounds.join(_group(record), checked_address(record["listen"]))
        return self._rounds.rejoin(_group(record), {checked_address(each) for each in record["failed"]})

    def _stream(self, peer: Peer, record: dict[str, Any], payload: bytes) -> None:
        """Sends what a receiver wants: forwarded while it comes, or of a version that is held here."""
        span, offset = record["at"]
        at = StreamPlace(int(span), int(offset))
        spans = tuple(map(tuple, parse_bounded_json(payload)))
        if record["live"]:
            group = (str(record["identity"]), digest(spans))
            with self._changed:
                self._changed.wait_for(lambda: group in self._receiving, ATTACH_SECONDS)
                stream = self._receiving.get(group)
            if at != StreamPlace() or stream is None or stream.spans != spans or not stream.attach(peer):
                raise UserError("this engine does not receive that version, or has begun to")
            return
        held = self._held_version(record)
        spans = held.manifest.check(spans)
        inside = at.span == len(spans) and not at.offset
        if at.span < len(spans):
            inside = at.span >= 0 and 0 <= at.offset < spans[at.span][2] - spans[at.span][1]
        if not inside:
            raise ValueError("no place in a stream")
        with held.read(lambda: beat(peer, held.manifest.tag)) as memory:
            peer.tell({})
            send_version(peer, held.manifest, spans, at, memory)


def _group(record: dict[str, Any]) -> Group:
    return str(record["identity"]), str(record["want"])
