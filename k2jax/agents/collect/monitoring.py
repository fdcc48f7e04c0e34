"""What a collection shows of itself: its progress, metrics for Prometheus, a trace, and a check of what it stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
import contextlib
import heapq
import json
from pathlib import Path
import time
from typing import Any

from k2jax.agents.collect.journal import Emission, read_journal, stored_trajectory
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.report.table import duration, significant
from k2jax.trajectory import verify


class CollectionProgress:
    """Counts ends, and words them.

    Args:
        total: episodes of the collection.
        correct: reward from which on an episode is a success.
        earlier: ends before this process.
    """

    def __init__(self, total: int, correct: float, earlier: Iterable[Emission] = ()):
        self._total, self._correct = total, correct
        self._counts: Counter[str] = Counter()
        self._rewards = 0.0
        for emission in earlier:
            self.add(emission)
        self._began, self._earlier = time.monotonic(), self._counts["ended"]
        self._earlier_tokens = self._counts["tokens"]

    def add(self, emission: Emission) -> None:
        """An episode has ended."""
        counts = self._counts
        counts["ended"] += 1
        counts["masked"] += emission.end != "done" or emission.status == "masked"
        counts["truncated"] += emission.status == "truncated"
        counts["tokens"] += emission.tokens
        counts["turns"] += emission.turns
        counts["calls"] += emission.calls
        if emission.reward is not None:
            counts["judged"] += 1
            counts["right"] += emission.reward >= self._correct
            self._rewards += emission.reward

    def line(self) -> str:
        """Where the collection is: ends, success, tokens, steps and the time that is left."""
        counts, seconds = self._counts, time.monotonic() - self._began
        done = counts["ended"] - self._earlier
        parts = [f"{counts['ended']:,}/{self._total:,} episodes"]
        if counts["judged"]:
            parts.append(f"success {counts['right'] / counts['judged']:.1%} of {counts['judged']:,}")
            parts.append(f"reward {significant(self._rewards / counts['judged'])}")
        per_episode = max(1, counts["ended"])
        parts.append(f"{significant(counts['tokens'] / per_episode)} tokens and")
        parts[-1] += f" {significant(counts['turns'] / per_episode)} steps an episode"
        parts += [f"{counts[name]:,} {name}" for name in ("truncated", "masked") if counts[name]]
        if seconds > 0 and done:
            parts.append(f"{significant((counts['tokens'] - self._earlier_tokens) / seconds)} tokens/s")
            if counts["ended"] < self._total:
                parts.append(f"{duration((self._total - counts['ended']) * seconds / done)} left")
        return ", ".join(parts)

    def record(self) -> dict[str, float]:
        """The numbers, for a file."""
        counts = self._counts
        record = {name: counts[name] for name in ("ended", "judged", "right", "truncated", "masked", "tokens")}
        record |= {name: counts[name] for name in ("turns", "calls")}
        if counts["judged"]:
            record |= {"success": counts["right"] / counts["judged"], "reward": self._rewards / counts["judged"]}
        return record


_COUNTERS = {
    "ended": "Episodes that have ended",
    "masked": "Episodes without a trajectory, or masked",
    "truncated": "Episodes cut by a budget",
    "tokens": "Sampled tokens",
    "turns": "Calls of the model",
    "calls": "Calls of tools",
    "right": "Episodes whose reward counts as a success",
    "judged": "Episodes with a reward",
}


class RolloutMetrics:
    """Metrics of a collection, for a Prometheus registry.

    Args:
        manager: a ``RolloutManager``, whose numbers are shown.
        counts: totals by name, as ``CollectionProgress.record`` has them.
    """

    def __init__(self, manager: Any, counts: Any):
        self._manager, self._counts = manager, counts

    def collect(self) -> Iterator[Any]:
        """Yields the metrics; the registry calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        manager, counts = self._manager, self._counts()
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"k2jax_rollout_{name}", meaning, counts[name])
        yield CounterMetricFamily("k2jax_rollout_lost_workers", "Workers that died", manager.lost_workers)
        yield GaugeMetricFamily("k2jax_rollout_running", "Episodes that workers have", manager.running)
        yield GaugeMetricFamily("k2jax_rollout_waiting", "Episodes that no worker has yet", manager.waiting)
        lag = manager.probe.lag
        for name, value in (("p50", lag.p50), ("p99", lag.p99), ("most", lag.maximum)):
            meaning = "How late the scheduler is [s]"
            yield GaugeMetricFamily(f"k2jax_rollout_lag_{name}_seconds", meaning, value)


def serve_metrics(manager: Any, counts: Any, port: int) -> None:
    """Serves the metrics on 127.0.0.1 from a thread of its own.

    Raises:
        UserError: prometheus_client is not installed, or the port is taken.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        raise UserError('prometheus_client is not installed: pip install -e ".[serve]"') from None
    registry = CollectorRegistry()
    registry.register(RolloutMetrics(manager, counts))
    try:
        start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise UserError(f"metrics cannot be served on port {port}: {error.strerror}; choose another") from None


def verify_collection(folder: Path | str) -> tuple[int, list[str]]:
    """Reads every trajectory that the journal names and compares the two.

    Returns:
        How many there are, and what is wrong, a line each.

    Raises:
        UserError: the journal is damaged.
    """
    problems, seen, count = [], set(), 0
    for emission in read_journal(folder):
        if emission.key in seen:
            problems.append(f"{emission.key}: it ended twice")
        seen.add(emission.key)
        if emission.place is not None:
            count += 1
            problems += [f"{emission.key}: {problem}" for problem in _problems(folder, emission)]
    return count, problems


def _problems(folder: Path | str, emission: Emission) -> list[str]:
    try:
        trajectory = stored_trajectory(folder, emission.place)
    except UserError as error:
        return [str(error)]
    reward = None if trajectory.reward is None else trajectory.reward.value
    pairs = {
        "key": (trajectory.key, emission.key),
        "status": (trajectory.status, emission.status),
        "reward": (reward, emission.reward),
        "number of tokens": (trajectory.sampled_tokens, emission.tokens),
    }
    wrong = [f"its {name} is {own}, the journal's {entry}" for name, (own, entry) in pairs.items() if own != entry]
    return [*wrong, *verify(trajectory)]


MAX_EVENTS = 200_000
"""Events that a trace keeps: browsers show no more."""


class ChromeTrace:
    """What happens over time in the trace event format: spans, leases, and curves of values.

    Of a collection each worker is a process of the trace, with a row for each of its coroutines.
    """

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

    @contextlib.contextmanager
    def span(self, name: str, process: int) -> Iterator[None]:
        """A span of a process of the trace, for a ``with`` block; spans within it lie below it."""
        begin = self._now()
        try:
            yield
        finally:
            times = {"ts": begin * 1e6, "dur": (self._now() - begin) * 1e6}
            self._add({"ph": "X", "name": name, "pid": process, "tid": 0} | times)

    def count(self, name: str = "scheduler", /, **values: float) -> None:
        """Values at this moment, drawn as curves."""
        self._add({"ph": "C", "name": name, "pid": -1, "tid": 0, "ts": self._now() * 1e6, "args": values})

    def write(self, path: Path, names: Mapping[int, str] | None = None) -> None:
        """Writes the trace, which chrome://tracing and ui.perfetto.dev open; ``names`` are of processes."""
        named = {worker: f"worker {worker}" for worker in sorted(self._rows)} | dict(names or {})
        meta = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in named.items()]
        write_atomic(path, json.dumps({"traceEvents": [*meta, *self._events]}).encode())

    def _add(self, event: dict[str, Any]) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)

    def _now(self) -> float:
        return time.monotonic() - self._began
