"""Prometheus metrics of the server and its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from k2jax.inference.stats import EngineStats

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_GAUGES = {
    "slots": "Sequences that can run at the same time",
    "running": "Running sequences",
    "waiting": "Sequences that wait for a slot or for cache pages",
    "paused": "Paused sequences",
    "pages": "Pages of the KV cache",
    "pages_in_use": "Pages held by running sequences",
    "pages_cached": "Unused pages that hold a cached prefix",
}
_COUNTERS = {
    "tokens_generated": "Generated tokens",
    "prompt_tokens": "Prompt tokens",
    "prompt_tokens_cached": "Prompt tokens found in the prefix cache",
    "steps": "Engine steps",
    "images_computed": "Images and chunks of video that the tower has read",
    "decode_steps": "Forward passes over one new token of every running sequence",
    "decode_tokens": "Tokens that these passes gave",
    "prefill_tokens": "Prompt tokens, and those of resumed sequences, that other passes computed",
}


class Metrics:
    """Metrics of one server.

    Attributes:
        disconnects: clients that disconnected before the end of their response.
        first_token: time from a request to its first token [s].
    """

    def __init__(self, stats: Callable[[], EngineStats]):
        """Registers the metrics; ``stats`` returns the engine's counters."""
        self._registry = CollectorRegistry()
        self._stats = stats
        self._registry.register(self)
        names = ("endpoint", "status")
        self._requests = Counter("k2jax_requests", "Responses", names, registry=self._registry)
        self.disconnects = Counter(
            "k2jax_disconnects", "Clients that disconnected before the end of their response", registry=self._registry
        )
        self.first_token = Histogram(
            "k2jax_time_to_first_token_seconds", "Time from a request to its first token", registry=self._registry,
            buckets=_SECONDS,
        )  # fmt: skip

    def count_response(self, endpoint: str, status: int) -> None:
        """Counts a response."""
        self._requests.labels(endpoint, str(status)).inc()

    def collect(self) -> Iterator[Metric]:
        """Yields the engine's counters; the registry calls it."""
        stats = self._stats()
        for name, meaning in _GAUGES.items():
            yield GaugeMetricFamily(f"k2jax_{name}", meaning, getattr(stats, name))
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"k2jax_{name}", meaning, getattr(stats, name))

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
