"""One host's loader of a synthetic corpus in a process of its own, which prints what it took as a line of JSON."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
import resource
import sys
import time
from typing import Any

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.config.schema import SourceConfig
from k2jax.data.loader import DataLoader, HeldOut
from k2jax.data.packing import RowSource
from k2jax.data.synthetic.folders import open_corpus

LENGTH = 4096
"""Tokens of a row."""


def opened(folder: Path, groups: list[int], **options: Any) -> tuple[DataLoader, HeldOut]:
    """Training batches and validation batches of a synthetic corpus.

    Args:
        folder: see ``write_corpus``.
        groups: of each source.
        **options: of ``DataLoader``.
    """
    shards = open_corpus(folder, groups)
    sources = {name: SourceConfig(weight=float(count)) for name, count in zip(shards, groups, strict=True)}
    rows = {name: RowSource(source.train, LENGTH) for name, source in shards.items()}
    held_out = HeldOut({name: RowSource(source.held_out, LENGTH) for name, source in shards.items()})
    return DataLoader(rows, sources, seed=1, **options), held_out


def row_digests(batch: PackedBatch) -> list[str]:
    """A digest of every row with all that it says of its tokens."""
    leaves = batch.tokens, batch.positions, batch.exit, batch.parent, batch.targets["weights"]
    return [hashlib.blake2b(b"".join(leaf[row].tobytes() for leaf in leaves), digest_size=8).hexdigest()
            for row in range(len(batch.tokens))]  # fmt: skip


def main(folder: str, choices: str) -> None:
    """Reads the batches of a host from a step on, and prints what they took.

    Args:
        folder: see ``write_corpus``.
        choices: JSON with ``groups``, ``batch_size``, ``steps``, the first ``step`` that is read, and perhaps ``hosts``
            with the number ``host``, the ``batches`` that are read and the ``began`` of the process, as ``time.time``.
    """
    given = {"host": 0, "hosts": 1, "batches": 3, "began": time.time()} | json.loads(choices)
    size, hosts = given["batch_size"], given["hosts"]
    local = range(given["host"] * size // hosts, (given["host"] + 1) * size // hosts)
    loader, _ = opened(Path(folder), given["groups"], batch_size=size, steps=given["steps"], local_rows=local)
    batches = loader.batches(given["step"])
    digests, times = [row_digests(next(batches))], [time.time()]
    threads = _status("Threads")
    for _ in range(given["batches"] - 1):
        digests.append(row_digests(next(batches)))
        times.append(time.time())
    print(json.dumps({
        "first_batch": times[0] - given["began"],
        "batch": float(np.median(np.diff(times))) if len(times) > 1 else None,
        "processor": time.process_time(),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "threads": max(threads, _status("Threads")),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "rows": digests,
    }))  # fmt: skip


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
