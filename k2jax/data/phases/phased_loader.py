"""Batches of a run with phases, by the steps of the run: pure functions of (seed, step), as those of each phase are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from k2jax.batch import PackedBatch
from k2jax.data.loader import DataLoader


class LoadedPhase(NamedTuple):
    """The batches of a phase.

    Attributes:
        first: steps of the run before it.
        last: its last step, counted from 1.
        loader: of its own steps.
        parts: of every source that it reads, the tokens of its part over all of the source.
    """

    first: int
    last: int
    loader: DataLoader
    parts: Mapping[str, float]


class PhasedLoader:
    """The interface of ``DataLoader``, whose steps are those of the whole run, from 0.

    Args:
        phases: in order.
        names: of all sources of the run.
    """

    def __init__(self, phases: Sequence[LoadedPhase], names: Sequence[str]):
        self._phases, self._names = phases, names

    @property
    def identity(self) -> list[str]:
        """What decides the batches beside the corpus, of all phases; see ``DataLoader``."""
        return sorted({word for phase in self._phases for word in phase.loader.identity})

    def batch(self, step: int) -> PackedBatch:
        """This process's rows of a step's batch, as long as those of its phase are."""
        phase = self._phase(step)
        return phase.loader.batch(step - phase.first)

    def rows(self, step: int, numbers: Sequence[int]) -> PackedBatch:
        """Some rows of text of a step's batch; see ``DataLoader``."""
        phase = self._phase(step)
        return phase.loader.rows(step - phase.first, numbers)

    def batches(self, start_step: int = 0) -> Iterator[PackedBatch]:
        """Iterates over the batches from ``start_step`` to the last one of its phase; see ``DataLoader.batches``."""
        phase = self._phase(start_step)
        return phase.loader.batches(start_step - phase.first)

    def sources(self, step: int) -> list[str]:
        """Name of the source of every row of a step's batch, over all processes."""
        phase = self._phase(step)
        return phase.loader.sources(step - phase.first)

    def epochs(self, step: int) -> dict[str, float]:
        """Number of passes over each source of the run in its first ``step`` steps, over all phases."""
        passes = dict.fromkeys(self._names, 0.0)
        for phase in self._phases:
            done = min(step, phase.last) - phase.first
            for name, passed in phase.loader.epochs(done).items() if done > 0 else ():
                passes[name] += passed * phase.parts[name]
        return passes

    def _phase(self, step: int) -> LoadedPhase:
        return next((phase for phase in self._phases if step < phase.last), self._phases[-1])
