"""The same runs with several seeds: their overrides, and what was measured of them, seed by seed.

The run ``NAME`` of seed S is called ``seedS_NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from k2jax.report.table import markdown_table
from k2jax.reproduce.results import RunResult, curve, points, spread

Overrides = dict[str, Any]


def for_seeds(seeds: Iterable[int], runs_of: Callable[[int], Mapping[str, Overrides]]) -> dict[str, Overrides]:
    """Overrides of the runs of every seed.

    Args:
        seeds: the seeds.
        runs_of: the runs of a seed by name, each after those that it starts from.
    """
    return {f"seed{seed}_{name}": run | {"train.seed": seed} for seed in seeds for name, run in runs_of(seed).items()}


def seeds_of(results: Mapping[str, RunResult]) -> list[int]:
    """The seeds of a study's runs, ascending."""
    return sorted({result.config.train.seed for result in results.values()})


class SeedRecords(NamedTuple):
    """What was measured of a study's runs, seed by seed.

    Attributes:
        seeds: the seeds, ascending.
        runs: for each run, by its name without the seed, a record for each seed. A record need not hold every key.
    """

    seeds: list[int]
    runs: dict[str, list[Mapping[str, Any]]]

    @classmethod
    def of(
        cls,
        results: Mapping[str, RunResult],
        names: Iterable[str],
        record: Callable[[RunResult], Mapping[str, Any]] = lambda result: result.evaluation,
    ) -> SeedRecords:
        """Records of the named runs: what the study evaluated of each, or what ``record`` makes of its result."""
        seeds = seeds_of(results)
        return cls(seeds, {name: [record(results[f"seed{seed}_{name}"]) for seed in seeds] for name in names})

    def values(self, run: str, key: str) -> list[float | None]:
        """A value for each seed, None where it was not measured."""
        return [record.get(key) for record in self.runs[run]]

    def spread(self, run: str, key: str, digits: int = 3) -> str:
        """Mean and range over the seeds, as ``results.spread``."""
        return spread(self.values(run, key), digits)

    def gain(self, run: str, key: str, start: str) -> str:
        """What a run adds to a share of the run ``start``, as ``results.points``."""
        return points(self.values(run, key), self.values(start, key))

    def kinds_table(self, runs: Mapping[str, str], kinds: Mapping[str, str], ways: Mapping[str, str]) -> str:
        """A Markdown table of the shares ``KEY/KIND`` of runs; all arguments are labels by name, ``ways`` by key."""
        header = ("run", *(f"{label}, {way}" for label in kinds.values() for way in ways.values()))
        rows = [
            (label, *(self.spread(run, f"{key}/{kind}") for kind in kinds for key in ways))
            for run, label in runs.items()
        ]
        return markdown_table(header, rows)


def minutes_of(results: Mapping[str, RunResult], runs: Iterable[str]) -> str:
    """Training time of some runs together, mean and range over the seeds [min]."""
    return spread([each / 60 for each in _seconds(results, runs)], 1)


def seconds_of_samplers(results: Mapping[str, RunResult]) -> str:
    """Training time of the runs ``rl`` and ``rl_workers`` in words, a number of seconds for each seed."""
    lockstep, workers = (", ".join(f"{each:.0f}" for each in _seconds(results, [run])) for run in ("rl", "rl_workers"))
    return f"reinforcement learning in lockstep {lockstep} s, without waiting {workers} s"


def _seconds(results: Mapping[str, RunResult], runs: Iterable[str]) -> list[float]:
    """Training time of some runs together, for each seed."""
    runs = list(runs)
    return [sum(curve(results[f"seed{seed}_{run}"], "seconds")[1][-1] for run in runs) for seed in seeds_of(results)]
