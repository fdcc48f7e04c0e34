"""Messages between processes: a JSON object each. Nothing that is read is executed."""

from __future__ import annotations

import json
import socket
from typing import Any, Literal

from k2jax.files import frames
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.frames import FrameError

LARGEST = 64 << 20
"""Bytes of a message; a longer one is refused by its sender and ends the conversation with its receiver."""
_BOUNDS = frames.Bounds(LARGEST, 0)

# Who may be to blame for a missing verdict of a verifier that judges every answer.
ANSWER = "answer"
"""The answer: the verifier raised, or used up its processor time. A machine that is busy does neither."""
UNCLEAR = "unclear"
"""The answer, or a machine that was short of memory: the verifier's process died, or got no memory."""
BUSY = "busy"
"""The machine: the verifier's process got no processor."""

Judged = Literal["answer", "episode", "episode in a sandbox"]
"""What a verifier judges: the text of an answer, in its process; or all of an episode, with a sandbox or without."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message.

    Raises:
        ValueError: it is no JSON, or too long.
        OSError: the other side is gone.
    """
    raw = json.dumps(message, allow_nan=False).encode()
    if len(raw) > LARGEST:
        raise ValueError(f"a message of {len(raw)} bytes is too long")
    connection.sendall(frames.lengths(len(raw), 0) + raw)


def receive(connection: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """The next message; see ``files.frames.receive``, whose FrameError is also that for what is no JSON object."""
    try:
        message = parse_bounded_json(frames.receive(connection, _BOUNDS, deadline)[0])
    except ValueError:
        raise FrameError("a message that is not JSON") from None
    if not isinstance(message, dict):
        raise FrameError("a message that is no JSON object")
    return message
