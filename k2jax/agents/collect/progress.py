"""The progress of a collection, in numbers that the scheduler knows without reading a trajectory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
import time

from k2jax.agents.collect.journal import Emission
from k2jax.report.table import duration, significant


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
