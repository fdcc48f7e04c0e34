"""The loader of K2's corpus beside that of a small one: 15.5 trillion tokens in 3.8 billion rows of 50 sources.

The files are computed when they are read (``k2jax.data.synthetic``); manifests, tables and checksums are those of real
ones, and the code that opens and reads them is the trainer's. Every loader is a process of its own that reads the rows
of one of 1, 4 or 8 hosts from a step in the middle of the run: what it takes to its first batch counts from its start,
imports included. The small corpus has as many sources, and a millionth of the rows; both are read in the same step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from k2jax.bench.loader_process import LENGTH
from k2jax.bench.timing import Row, cost_row
from k2jax.data.synthetic.folders import source_groups, write_corpus
from k2jax.errors import UserError

ROWS, SOURCES = 3_800_000_000, 50
BATCH = 64
HOSTS = (1, 4, 8)
STEPS = ROWS // BATCH
MIDDLE = 31_415_926
_SMALL = 40
"""Groups of a source of the small corpus: just too many for checking them all at opening."""


def measure(rounds: int = 10) -> list[Row]:
    """Rows of time, memory and threads for each number of hosts."""
    with tempfile.TemporaryDirectory() as folder:
        groups = {"large": source_groups(ROWS, SOURCES, LENGTH), "small": [_SMALL] * SOURCES}
        for name, counts in groups.items():
            write_corpus(Path(folder, name), counts)
        found: dict[tuple[str, int], list[dict]] = {(name, hosts): [] for hosts in HOSTS for name in groups}
        for _ in range(rounds):
            for name, hosts in found:
                step = MIDDLE if name == "large" else 1000
                done = run_host(Path(folder, name), groups[name], hosts=hosts, step=step, steps=step + 9)
                found[name, hosts].append(done)
    return [row for hosts in HOSTS for row in _rows(hosts, found["large", hosts], found["small", hosts])]


def run_host(folder: Path, groups: list[int], **choices: Any) -> dict[str, Any]:
    """What one host's loader took, see ``loader_process``.

    Args:
        folder: of the corpus.
        groups: of its sources.
        **choices: of ``loader_process.main``.

    Raises:
        UserError: the process failed.
    """
    given = {"groups": groups, "batch_size": BATCH, "began": time.time()} | choices
    command = [sys.executable, "-m", "k2jax.bench.loader_process", str(folder), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise UserError(f"a loader failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def _rows(hosts: int, large: list[dict], small: list[dict]) -> list[Row]:
    """Rows of one number of hosts."""
    kinds = {
        "first_batch": ("start to the first batch", "s", 1.0),
        "processor": ("processor time of a start and three batches", "s", 1.0),
        "batch": (f"a batch of {BATCH // hosts} rows of {LENGTH:,}", "ms", 1e3),
        "memory": ("peak memory of the process", "MiB of memory", 2.0**-20),
        "threads": ("threads", "threads", 1.0),
    }
    rows = []
    for key, (title, unit, scale) in kinds.items():
        ours, theirs = (scale * statistics.median(each[key] for each in side) for side in (large, small))
        name = f"3.8e9 rows, 1 of {hosts} hosts: {title}"
        rows.append(cost_row(name, ours, theirs, unit, "4e6 rows", device=f"{os.cpu_count()} processors"))
    return rows
