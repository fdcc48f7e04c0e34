"""A process of the benchmark of broadcasts: ``python -m k2jax.bench.weight_receiver WHAT PORT ARRAYS BYTES``.

``broadcast`` takes the version of a source for every line on standard input and prints a line of JSON when it has it,
with the most memory that the process had beyond its weights and modules [bytes], and its processor time. ``socket``
reads as many bytes from a plain socket for every line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import json
from pathlib import Path
import re
import socket
import sys
import time
from typing import Any

import jax
import numpy as np

from k2jax.rl.broadcast.received_weights import ReceivedWeights

KEY = bytes(range(32))
HOST = "127.0.0.1"
READ = 4 << 20
"""Bytes of a read of the plain socket."""


class PlainWeights:
    """In the place of an engine's weights: arrays of the host that are overwritten."""

    def __init__(self, count: int, size: int):
        self.arrays = {f"w{number}": np.full(size, 1, np.uint8) for number in range(count)}
        self._sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def check(self, leaves: Iterable[tuple[Any, Any]]) -> None:
        """As of ``EngineWeights``; the benchmark sends what it has."""

    def names(self) -> Iterator[str]:
        """As of ``EngineWeights``."""
        return iter(self.arrays)

    def target(self, name: str) -> jax.ShapeDtypeStruct:
        """As of ``EngineWeights``."""
        return jax.ShapeDtypeStruct(self.arrays[name].shape, np.uint8, sharding=self._sharding)

    def leaves(self) -> Iterator[tuple[str, np.ndarray]]:
        """As of ``EngineWeights``."""
        return iter(self.arrays.items())


def _memory(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def _broadcast(port: int, weights: PlainWeights) -> None:
    source = ReceivedWeights([(HOST, port)], KEY, weights, lambda text: print(text, file=sys.stderr))
    before = _memory("VmRSS")
    for _ in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        began = time.process_time()
        for name, array in source.load()[1]:
            np.copyto(weights.arrays[name], array)  # what takes them to a device
        seconds = time.process_time() - began
        print(json.dumps({"memory": _memory("VmHWM") - before, "processor": seconds}), flush=True)
    source.close()


def _socket(port: int, size: int) -> None:
    connection, buffer = socket.create_connection((HOST, port)), memoryview(bytearray(READ))
    for _ in sys.stdin:
        began, left = time.process_time(), size
        while left:
            left -= connection.recv_into(buffer[:left])
        print(json.dumps({"processor": time.process_time() - began}), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    what, port, count, size = sys.argv[1], *map(int, sys.argv[2:])
    print(json.dumps({}), flush=True)
    _broadcast(port, PlainWeights(count, size)) if what == "broadcast" else _socket(port, count * size)
