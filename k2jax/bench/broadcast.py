"""Weights from a store to processes of other engines over loopback, against a plain socket and a plain copy in memory.

All sides of a row move the same bytes. Of a broadcast the time ends when every receiver has them, each in a process of
its own: they are checked, forwarded, put together and copied to where they belong. The plain socket goes to one
process, which reads and forgets them. All processes share this machine's processors, which hosts would not.

The peak of memory is that of the process which needed most, beyond its weights, beside the bound: the buffers of a
stream, the arrays on their way, one that is put together, one that waits and one that is copied, and a MiB for the
stacks of threads and the interpreter's own objects.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import contextlib
import json
from pathlib import Path
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from typing import Any

import numpy as np

from k2jax.bench.timing import Row, cost_row, interleaved, rate_row
from k2jax.bench.weight_receiver import HOST, KEY
from k2jax.rl.broadcast.holdings import StoredVersion
from k2jax.rl.broadcast.pieces import CHUNK, Manifest, Piece
from k2jax.rl.broadcast.streams import BUFFERS
from k2jax.rl.broadcast.weight_server import WeightServer
from k2jax.rl.sync.checkpoint_engine import SHARED_MEMORY, CheckpointEngine

ARRAYS, BYTES = 32, 8 << 20
COUNTS = (2, 4)
ARRAYS_ON_THEIR_WAY = 3
THREADS = 1 << 20
"""Bytes for stacks and objects of the interpreter."""


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the rate to 2 and to 4 receivers, each against both baselines, and of their memory."""
    total, held = ARRAYS * BYTES, {f"w{i}": np.full(BYTES, i, np.uint8) for i in range(ARRAYS)}
    peaks: dict[int, float] = {count: 0.0 for count in COUNTS}
    busy: dict[str, list[float]] = collections.defaultdict(list)
    root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="k2jax-bench-", dir=root)))
        store = CheckpointEngine(folder / "store")
        store.publish(held, 1)
        candidates: dict[str, Callable[[], Any]] = {
            str(count): _broadcast(opened, store.folder, count, peaks, busy) for count in COUNTS
        }
        candidates["socket"] = _plain_socket(opened, held, busy)
        copies = {name: np.zeros_like(array) for name, array in held.items()}
        candidates["memory"] = lambda: [np.copyto(copies[name], array) for name, array in held.items()]
        seconds = interleaved(candidates, rounds)
    rates = {name: total / 1e9 / time for name, time in seconds.items()}
    rows = []
    bound = BUFFERS * CHUNK + ARRAYS_ON_THEIR_WAY * BYTES + THREADS
    for count in COUNTS:
        what = f"broadcast {total / 1e6:.0f} MB to {count} receivers"
        rows.append(rate_row(what, rates[str(count)], rates["socket"], "GB/s", "plain socket, to one"))
        rows.append(rate_row(what, rates[str(count)], rates["memory"], "GB/s", "plain copy"))
        spent = [statistics.median(busy[name]) / total * 1e9 for name in (str(count), "socket")]
        rows.append(cost_row(f"processor of one of {count}, a GB", *spent, "s", "reader of the socket"))
        rows.append(cost_row(f"memory of a receiver of {count}", peaks[count] / 1e6, bound / 1e6, "MB", "bound"))
    return rows


def _started(opened: contextlib.ExitStack, what: str, port: int) -> Callable[[], Callable[[], dict[str, float]]]:
    """A process that begins when it is told to; what that returns waits for its answer."""
    command = [sys.executable, "-m", "k2jax.bench.weight_receiver", what, str(port), str(ARRAYS), str(BYTES)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    opened.callback(process.wait)
    opened.callback(process.stdin.close)
    process.stdout.readline()

    def begin() -> Callable[[], dict[str, float]]:
        process.stdin.write("\n")
        process.stdin.flush()
        return lambda: json.loads(process.stdout.readline())

    return begin


def _broadcast(
    opened: contextlib.ExitStack, store: Path, count: int, peaks: dict[int, float], busy: dict[str, list[float]]
) -> Callable[[], None]:
    """Sends the store's version, as a new one each time."""
    [folder] = store.glob("1-*")
    entries = json.loads((folder / "manifest.json").read_text())["arrays"]
    pieces = tuple(map(Piece.of_entry, entries))
    server = WeightServer((HOST, 0), KEY, lambda text: print(text, file=sys.stderr))
    opened.callback(server.close)
    receivers = [_started(opened, "broadcast", server.address[1]) for _ in range(count)]
    runs = iter(range(1 << 30))

    def run() -> None:
        number = next(runs)
        server.offer(StoredVersion(folder, Manifest(f"{count}-{number}", number, pieces)))
        answers = [answer() for answer in [begin() for begin in receivers]]
        busy[str(count)] += [answer["processor"] for answer in answers]
        peaks[count] = max(peaks[count], *(answer["memory"] for answer in answers))

    return run


def _plain_socket(
    opened: contextlib.ExitStack, held: dict[str, np.ndarray], busy: dict[str, list[float]]
) -> Callable[[], None]:
    listener = opened.enter_context(socket.create_server((HOST, 0)))
    begin = _started(opened, "socket", listener.getsockname()[1])
    connection = opened.enter_context(listener.accept()[0])

    def run() -> None:
        answer = begin()
        sending = threading.Thread(target=lambda: [connection.sendall(memoryview(array)) for array in held.values()])
        sending.start()
        busy["socket"].append(answer()["processor"])
        sending.join()

    return run
