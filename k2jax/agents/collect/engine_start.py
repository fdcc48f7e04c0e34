"""Starts an engine in a process of its own, which ends with the process that started it."""

from __future__ import annotations

from collections.abc import Mapping
import json
import socket
import subprocess
import sys
from typing import Any

from k2jax.agents.collect.engine_address import EngineAddress


def start_engine(
    record: Mapping[str, Any], address: EngineAddress, listener: socket.socket | None = None
) -> subprocess.Popen[bytes]:
    """Starts ``k2jax.serve.engine_process``; closing its standard input ends it.

    Args:
        record: what it serves, see there.
        address: where it listens. Its key is not among the arguments of the process, which every user can read.
        listener: of an address of TCP, which the process inherits.
    """
    place = {"socket": address.path} if listener is None else {"listener": listener.fileno(), "key": address.key}
    engine = subprocess.Popen(
        [sys.executable, "-m", "k2jax.serve.engine_process"],
        stdin=subprocess.PIPE,
        start_new_session=True,  # see the workers'
        pass_fds=() if listener is None else (listener.fileno(),),
    )
    engine.stdin.write(json.dumps({**record, **place}).encode() + b"\n")
    engine.stdin.flush()
    return engine
