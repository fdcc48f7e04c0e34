"""Leases over time, for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import heapq
import json
from pathlib import Path
import time
from typing import Any

from k2jax.files.atomic import write_atomic

MOST_EVENTS = 200_000
"""Events that a trace keeps: browsers show no more."""


class ChromeTrace:
    """Leases over time in the trace event format: a process for each worker, a row for each of its coroutines."""

    def __init__(self):
        self._began = time.monotonic()
        self._events: list[dict[str, Any]] = []
        self._open: dict[int, tuple[int, int, float]] = {}  # by lease: worker, row, begin [s]
        self._rows: dict[int, list[int]] = {}
        self._used: dict[int, int] = {}

    def leased(self, number: int, worker: int) -> None:
        """A worker gets a lease."""
        free = self._rows.setdefault(worker, [])
        if not free:
            free.append(self._used.get(worker, 0))
            self._used[worker] = free[0] + 1
        self._open[number] = worker, heapq.heappop(free), self._now()

    def released(self, number: int, details: dict[str, Any]) -> None:
        """A lease is over; ``details`` say what came of it, and what its episode waited for."""
        if number not in self._open:
            return
        worker, row, begin = self._open.pop(number)
        heapq.heappush(self._rows[worker], row)
        span = {"ts": begin * 1e6, "dur": (self._now() - begin) * 1e6}
        self._add({"ph": "X", "name": "episode", "pid": worker, "tid": row, "args": details} | span)

    def count(self, **values: float) -> None:
        """Values at this moment, drawn as curves."""
        self._add({"ph": "C", "name": "scheduler", "pid": -1, "tid": 0, "ts": self._now() * 1e6, "args": values})

    def write(self, path: Path) -> None:
        """Writes the trace, which chrome://tracing and ui.perfetto.dev open."""
        names = [
            {"ph": "M", "name": "process_name", "pid": worker, "args": {"name": f"worker {worker}"}}
            for worker in sorted(self._rows)
        ]
        write_atomic(path, json.dumps({"traceEvents": [*names, *self._events]}).encode())

    def _add(self, event: dict[str, Any]) -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)

    def _now(self) -> float:
        return time.monotonic() - self._began
