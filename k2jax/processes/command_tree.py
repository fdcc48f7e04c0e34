"""The tree through which process 0 sends messages to all other processes of a run, and in which they miss each other.

Process i hears process (i - 1) // 8 and passes on to 8 i + 1 ... 8 i + 8. A thread for each connection reads, passes on
and keeps what the process has not asked for yet. Another thread sends a heartbeat to every neighbour and looks when it
was last heard, whatever the process itself is waiting for: a process that is gone is missed at once, and one that is
stopped after ``SILENCE_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import queue
import secrets
import socket
import struct
import threading
import time

import xxhash

from k2jax.files.frames import FrameError
from k2jax.processes.command_links import END, HEARTBEAT, LAST, LOST, MORE, PIECE, PeerLink, accept, connect
from k2jax.processes.group import Group

FAN_OUT = 8
HEARTBEAT_SECONDS, SILENCE_SECONDS = 2.0, 20.0
KEPT_FRAMES = 256
"""Frames that a process keeps before it reads more."""
START_SECONDS, END_SECONDS = 60.0, 20.0
_NEWS_SECONDS = 3.0  # in which the tree and the group have told of a process that is gone
_INDEX = struct.Struct("<I")
_HEAD = struct.Struct("<Q16s")  # number of a message, and a checksum of it


class MessageTree:
    """One process's place in the tree.

    Example:
        >>> with MessageTree(group, "commands") as tree:
        ...     tree.send(message) if group.index == 0 else tree.receive()

    Args:
        group: the processes of the run.
        name: of the tree, used once in a run.
        on_lost: called on another thread with the number of a neighbour that is gone; it ends the process.
    """

    def __init__(self, group: Group, name: str, on_lost: Callable[[int], object] | None = None):
        self._group, self._lose = group, on_lost or (lambda index: group.stop_without([index]))
        self._parent, self._children = self._join(name)
        self._frames: queue.Queue[tuple[bytes, bytes]] = queue.Queue(KEPT_FRAMES)
        self._sent = self._received = 0
        self._ended = threading.Event()
        group.news_seconds = _NEWS_SECONDS
        self._readers = [self._thread(self._hear_child, child) for child in self._children]
        if self._parent is not None:
            self._readers.append(self._thread(self._hear_parent, self._parent))
        self._thread(self._watch)

    def __enter__(self) -> MessageTree:
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        """Ends the tree in all processes; after an exception the connections stay, and end with the process."""
        if kind is not None:
            return
        if self._parent is None:
            self._ended.set()
            for child in self._children:
                with contextlib.suppress(OSError):
                    child.send(END)
                child.finish()
        else:  # process 0 may have a report to write; whether it lives is watched
            self._ended.wait()
        for reader in self._readers:
            reader.join(END_SECONDS)

    def send(self, message: bytes) -> None:
        """Sends a message to all other processes; process 0 alone may, from one thread at a time."""
        checksum = xxhash.xxh3_128_digest(message)
        data = memoryview(b"".join([_HEAD.pack(self._sent, checksum), message]))
        self._sent += 1
        last = (len(data) - 1) // PIECE
        for number in range(last + 1):
            self._pass_on(LAST if number == last else MORE, data[number * PIECE : (number + 1) * PIECE])

    def receive(self) -> bytes:
        """Waits for the next message of process 0.

        Raises:
            RuntimeError: the tree has ended.
            ValueError: a message is missing, or is not what was sent.
        """
        parts, kind = [], MORE
        while kind == MORE:
            kind, data = self._frames.get()
            parts.append(data)
        if kind == END:
            raise RuntimeError("process 0 has ended the run, and this process waits for it")
        whole = b"".join(parts)
        number, checksum = _HEAD.unpack_from(whole)
        message = whole[_HEAD.size :]
        if number != self._received or xxhash.xxh3_128_digest(message) != checksum:
            raise ValueError(f"message {self._received} of process 0 is damaged, or is message {number}")
        self._received += 1
        return message

    def _join(self, name: str) -> tuple[PeerLink | None, list[PeerLink]]:
        group, index = self._group, self._group.index
        key = bytes.fromhex(group.broadcast_from_first(f"{name}/key", secrets.token_hex(32)))
        own = set(range(FAN_OUT * index + 1, min(FAN_OUT * (index + 1) + 1, group.count)))
        with contextlib.ExitStack() as opened:
            if own:
                host = group.own_host()
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                server = opened.enter_context(socket.create_server((host, 0), family=family, backlog=2 * FAN_OUT))
                group.tell(f"{name}/address/{index}", f"{host}:{server.getsockname()[1]}")
            parent = None
            if index:
                above = (index - 1) // FAN_OUT
                address = group.read(f"{name}/address/{above}", START_SECONDS)
                parent = connect(address, key, index, above, START_SECONDS)
            return parent, accept(server, key, own, START_SECONDS) if own else []

    def _pass_on(self, kind: bytes, data: bytes | memoryview) -> None:
        for child in self._children:
            try:
                child.send(kind, data)
            except OSError:
                self._miss(child)

    def _hear_parent(self, parent: PeerLink) -> None:
        """Passes on and keeps what the parent sends."""
        try:
            while True:
                kind, data = parent.receive(PIECE)
                if kind == HEARTBEAT:
                    continue
                if kind == LOST:
                    return self._end_without(*_INDEX.unpack(data))
                if kind == END:
                    self._ended.set()
                self._pass_on(kind, data)
                self._keep(kind, data, parent)
                if kind == END:
                    break
        except FrameError:
            self._miss(parent)
            return
        for child in self._children:
            child.finish()
        parent.close()

    def _keep(self, kind: bytes, data: bytes, parent: PeerLink) -> None:
        while True:
            with contextlib.suppress(queue.Full):
                return self._frames.put((kind, data), timeout=HEARTBEAT_SECONDS)
            parent.heard = time.monotonic()  # it is this process that does not read

    def _hear_child(self, child: PeerLink) -> None:
        try:
            while True:
                child.receive(0)
        except FrameError:
            self._miss(child)
        child.close()

    def _watch(self) -> None:
        """Sends heartbeats, and misses neighbours that send none."""
        neighbours = [*self._children, *([self._parent] if self._parent else [])]
        looked = time.monotonic()
        while not self._ended.wait(HEARTBEAT_SECONDS):
            now = time.monotonic()
            if now - looked > SILENCE_SECONDS / 2:  # this process itself has stood still
                for neighbour in neighbours:
                    neighbour.heard = now
            looked = now
            for neighbour in neighbours:
                neighbour.try_to_send(HEARTBEAT)
                if now - neighbour.heard > SILENCE_SECONDS:
                    self._miss(neighbour)

    def _miss(self, link: PeerLink) -> None:
        if not self._ended.is_set():
            self._end_without(link.peer)

    def _end_without(self, index: int) -> None:
        """Tells those below, who may not reach the group's service any more, and ends the process."""
        for child in self._children:
            child.try_to_send(LOST, _INDEX.pack(index))
        self._lose(index)

    def _thread(self, target: Callable[..., None], *arguments: PeerLink) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"messages {target.__name__}", daemon=True)
        thread.start()
        return thread
