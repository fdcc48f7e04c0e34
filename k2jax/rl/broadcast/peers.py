"""Connections between those who hold weights: a greeting that proves the run's key, then records with payloads.

Either end begins with the version of the wire and a number that was never used before. Then the one that called proves
that it has the key, and the other one does: by a keyed digest of both numbers, so that the key itself is never sent.
What follows is neither encrypted nor signed: checksums find damage, not forgery by who can change what passes by.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from pathlib import Path
import secrets
import socket
import struct
import time
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import write_atomic
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.frames import Bounds, FrameError, lengths, receive

VERSION = 2
"""Of what the two ends of a connection say; another is refused."""
GREETING_SECONDS = 10.0
"""Time of a greeting, and of a connection to be made."""
SILENCE_SECONDS = 20.0
"""Time after which a peer that says nothing, or takes nothing, is given up; who waits itself says so more often [s]."""
ANSWER_SECONDS = 60.0
"""Time of an answer."""
_MAGIC = b"k2wt"
_HELLO = struct.Struct("!4sH32s")
_DIGEST_BYTES = 32
_CONTROL = Bounds(1 << 14, 32 << 20)
Address = tuple[str, int]
EVERY_INTERFACE = ("0.0.0.0", "::")
"""Hosts at which one listens and which nobody can call."""


class WeightsRefusedError(UserError):
    """The other end does not give what it was asked for; the message is its own."""


def text_of(address: Address) -> str:
    """An address as users write it."""
    return f"tcp://{address[0]}:{address[1]}"


def parse_address(text: str, what: str) -> Address:
    """Reads ``HOST:PORT`` or ``tcp://HOST:PORT``.

    Args:
        text: the address.
        what: the flag or key that says it.

    Raises:
        UserError: it is none.
    """
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 1 << 16:
        raise UserError(f"{what}={text} is no address; write HOST:PORT")
    return host.strip("[]"), int(port)


def checked_address(value: Any) -> Address:
    """An address that another machine has named.

    Raises:
        ValueError: it is none.
    """
    host, port = value
    if not isinstance(host, str) or len(host) > 255 or type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError("no address")
    return host, port


def make_key(path: Path) -> bytes:
    """The key of a file that nobody but this user can read; a new one where there is no file.

    The file has a whole key or is not there, whenever a process is killed. One process at a time calls it.

    Raises:
        UserError: it cannot be written, or holds no key.
    """
    try:
        if not path.exists():
            write_atomic(path, secrets.token_hex(_DIGEST_BYTES) + "\n", 0o600)
    except OSError as error:
        raise UserError(f"the key {path} cannot be written: {error.strerror}") from None
    return read_key(path)


def read_key(path: Path) -> bytes:
    """The key of a file.

    Raises:
        UserError: there is none.
    """
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        key = b""
    if len(key) != _DIGEST_BYTES:
        raise UserError(f"{path} holds no key of 64 hexadecimal digits; copy the one that the run wrote")
    return key


class Peer:
    """One end of a connection whose two ends have greeted each other.

    Args:
        connection: a stream socket, which is closed where the greeting fails.
        key: of the run.
        called: whether this end began the connection.

    Raises:
        UserError: the other end speaks another version, or has another key.
        OSError: it is gone or says nothing.
        FrameError: it is something else.
    """

    def __init__(self, connection: socket.socket, key: bytes, called: bool):
        self.socket = connection
        try:
            self._until = time.monotonic() + GREETING_SECONDS
            connection.settimeout(GREETING_SECONDS)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(key, called)
            connection.settimeout(SILENCE_SECONDS)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def call(cls, address: Address, key: bytes) -> Peer:
        """Connects to an address; raises as the constructor."""
        return cls(socket.create_connection(address, GREETING_SECONDS), key, True)

    def _greet(self, key: bytes, called: bool) -> None:
        mine = secrets.token_bytes(_DIGEST_BYTES)
        self.socket.sendall(_HELLO.pack(_MAGIC, VERSION, mine))
        magic, version, theirs = _HELLO.unpack(self._exactly(_HELLO.size))
        if magic != _MAGIC:
            raise FrameError("the other end holds no weights")
        if version != VERSION:
            raise UserError(
                f"the other end speaks version {version} of the wire of weights, and this process {VERSION}; install "
                "the same k2jax on all machines"
            )
        proof = _proof(key, b"called" if called else b"answered", mine, theirs)
        expected = _proof(key, b"answered" if called else b"called", theirs, mine)
        if called:
            self.socket.sendall(proof)
        try:
            shown = self._exactly(_DIGEST_BYTES)
        except FrameError:
            shown = b""
        if not hmac.compare_digest(shown, expected):
            raise UserError("the key is not that of the run; copy the file that the run wrote into its workdir")
        if not called:
            self.socket.sendall(proof)

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            self.socket.settimeout(max(1e-3, self._until - time.monotonic()))
            part = self.socket.recv(count - len(parts))
            if not part:
                raise FrameError("the end of the connection")
            parts += part
        return parts

    def tell(self, record: dict[str, Any], payload: bytes = b"") -> None:
        """Sends a record and a payload."""
        text = json.dumps(record).encode()
        self.socket.sendall(lengths(len(text), len(payload)) + text + payload)

    def hear(self) -> tuple[dict[str, Any], bytes]:
        """The next record and its payload.

        Raises:
            OSError: nothing comes.
            FrameError: the connection has ended, or what comes is no record.
        """
        text, payload = receive(self.socket, _CONTROL)
        try:
            record = parse_bounded_json(text, 1000)
        except ValueError as error:
            raise FrameError(f"a record that is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise FrameError("a record that is no object")
        return record, payload

    def ask(self, question: str, payload: bytes = b"", **values: Any) -> tuple[dict[str, Any], bytes]:
        """Sends a question and returns the answer.

        Raises:
            WeightsRefusedError: the other end says why it does not answer it.
            OSError: it is gone.
            FrameError: it is gone, or its answer is none.
        """
        self.socket.settimeout(ANSWER_SECONDS)
        self.tell({"ask": question, **values}, payload)
        answer, payload = self.hear()
        self.socket.settimeout(SILENCE_SECONDS)
        if "refused" in answer:
            raise WeightsRefusedError(abbreviate(answer["refused"], 300).strip("'\""))
        return answer, payload

    def close(self) -> None:
        """Ends the connection; another thread that waits for it hears of it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _proof(key: bytes, role: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.new(key, role + own + other, hashlib.sha256).digest()
