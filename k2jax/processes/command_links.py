"""Connections between the processes of a run: who is at the other end, and frames that arrive or are missed.

A frame is a kind, which is a byte, and at most ``PIECE`` bytes. Whoever connects says the version of the wire, its
number and the key of the run; another version ends both with one line, and a stranger is left alone.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import threading
import time

from k2jax.errors import UserError
from k2jax.files.frames import Bounds, FrameError, lengths, read_frame, receive
from k2jax.processes.rendezvous import ProcessLostError

VERSION = 2
"""Of what the processes of a run say to each other."""
PIECE = 1 << 20
"""Bytes of a frame at most; a longer message is several frames."""
GREETING_SECONDS = 5.0
_BUFFERED = 1 << 16  # bytes that are read ahead at most
GREETING, WELCOME, MORE, LAST, HEARTBEAT, LOST, END = (bytes((kind,)) for kind in range(1, 8))
"""Kinds of frames. A message is frames MORE and one LAST; LOST names a process that is gone, and END is the last frame
of a run that ends well."""
_GREETING = struct.Struct("<HI32s")
_ANSWER = struct.Struct("<H")


class PeerLink:
    """One end of a connection whose other end has shown who it is.

    Args:
        connection: the socket.
        peer: number of the process at the other end.

    Attributes:
        peer: number of the process at the other end.
        heard: when it last sent anything, by ``time.monotonic``.
    """

    def __init__(self, connection: socket.socket, peer: int):
        self.peer, self.heard = peer, time.monotonic()
        self._connection, self._sending = connection, threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = connection.makefile("rb", _BUFFERED)

    def send(self, kind: bytes, data: bytes | memoryview = b"") -> None:
        """Sends a frame; raises OSError where the other end is gone."""
        with self._sending:
            self._connection.sendall(b"".join([lengths(1, len(data)), kind, data]))

    def try_to_send(self, kind: bytes, data: bytes = b"") -> None:
        """Sends a short frame, unless another one is being sent or the other end is gone, of which a reader learns."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._connection.sendall(b"".join([lengths(1, len(data)), kind, data]))
            finally:
                self._sending.release()

    def receive(self, largest: int) -> tuple[bytes, bytes]:
        """Waits for a frame of at most ``largest`` bytes; raises FrameError where none comes any more."""
        kind, data = read_frame(self._file, Bounds(1, largest))
        self.heard = time.monotonic()
        return kind, data

    def finish(self) -> None:
        """Says that no more frames come from this end; the other end's still arrive."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection; its reader calls it."""
        self._file.close()
        self._connection.close()


def connect(address: str, key: bytes, index: int, parent: int, seconds: float) -> PeerLink:
    """Connects a process with its parent.

    Args:
        address: HOST:PORT of the parent.
        key: of the run.
        index: of this process.
        parent: number of the parent.
        seconds: how long to wait for the parent's answer [s].

    Raises:
        UserError: the parent speaks another version.
        ProcessLostError: it does not answer.
    """
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), seconds)
        connection.sendall(lengths(1, _GREETING.size) + GREETING + _GREETING.pack(VERSION, index, key))
        kind, data = receive(connection, Bounds(1, _ANSWER.size), time.monotonic() + seconds)
    except (OSError, FrameError) as error:
        raise ProcessLostError(f"process {parent} does not answer at {address}: {error or 'no answer'}") from None
    if kind != WELCOME or len(data) != _ANSWER.size:
        raise ProcessLostError(f"process {parent} answers something else at {address}")
    (version,) = _ANSWER.unpack(data)
    if version != VERSION:
        raise UserError(_other_version(parent, version))
    return PeerLink(connection, parent)


def accept(server: socket.socket, key: bytes, expected: set[int], seconds: float) -> list[PeerLink]:
    """Waits for the children of a process; whoever does not know the key is left alone.

    Args:
        server: listens.
        key: of the run.
        expected: numbers of the children.
        seconds: how long to wait for them [s].

    Raises:
        UserError: a child speaks another version.
        ProcessLostError: some did not come in time.
    """
    links: dict[int, PeerLink] = {}
    deadline = time.monotonic() + seconds
    while missing := expected - links.keys():
        server.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection = server.accept()[0]
        except TimeoutError:
            names = ", ".join(f"process {index}" for index in sorted(missing))
            raise ProcessLostError(f"{names} did not connect within {seconds:g} s; restart the run") from None
        index = _greeted(connection, key, missing)
        if index is None:
            connection.close()
        else:
            links[index] = PeerLink(connection, index)
    return [links[index] for index in sorted(links)]


def _greeted(connection: socket.socket, key: bytes, missing: set[int]) -> int | None:
    """The number of the child that has connected; None for a stranger."""
    try:
        kind, data = receive(connection, Bounds(1, 1 << 10), time.monotonic() + GREETING_SECONDS)
        if kind != GREETING or len(data) < _ANSWER.size:
            return None
        (version,) = _ANSWER.unpack_from(data)
        is_other = version != VERSION
        _, index, told = (version, -1, b"") if is_other else _GREETING.unpack(data)
        if not is_other and (not hmac.compare_digest(told, key) or index not in missing):
            return None
        connection.sendall(lengths(1, _ANSWER.size) + WELCOME + _ANSWER.pack(VERSION))
    except (OSError, FrameError, struct.error):
        return None
    if is_other:
        raise UserError(_other_version(None, version))
    return index


def _other_version(index: int | None, version: int) -> str:
    who = "another process" if index is None else f"process {index}"
    return (
        f"{who} speaks version {version} of the wire between the processes of a run, and this one {VERSION}; install "
        "the same k2jax on all machines"
    )
