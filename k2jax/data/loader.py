"""Batches for training and validation: pure functions of (seed, step) that no number of processes changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import hashlib
import math

import grain
import numpy as np

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.config.schema import SourceConfig
from k2jax.data.mixture import MixturePlan
from k2jax.data.packing import RowSource, bits_per_byte
from k2jax.data.shards import TokenStream
from k2jax.errors import UserError

READ_THREADS, BATCHES_AHEAD = 1, 4  # packing holds the interpreter's lock: more threads would only wait


class DataLoader:
    """The training mixture, cut into batches, of which a process may read a part."""

    def __init__(
        self,
        rows: Mapping[str, RowSource],
        sources: Mapping[str, SourceConfig],
        *,
        batch_size: int,
        seed: int,
        steps: int,
        part: Sequence[int] | None = None,
    ):
        """Plans the whole run.

        Args:
            rows: each source's training rows.
            sources: their weights and limits.
            batch_size: rows per step over all processes.
            seed: decides the order of rows.
            steps: how many batches there must be.
            part: numbers of the batch's rows that this process reads, all by default; from ``batch_size`` on there is
                padding.

        Raises:
            UserError: when weights are not positive, there are no rows, or the data do not last.
        """
        check_shares(sources)
        self._names = sorted(sources)
        if batch_size < 1:
            raise UserError(f"a batch of {batch_size} rows; it has at least one")
        self._part = range(batch_size) if part is None else part
        self._batch_size, self._steps = batch_size, steps
        self._length = next(iter(rows.values())).length
        self._source_rows = [len(rows[name]) for name in self._names]
        limits = [_limit(sources[name].max_epochs, len(rows[name])) for name in self._names]
        self._plan = MixturePlan([sources[name].weight for name in self._names], limits)
        if self._plan.rows is not None and self._plan.rows // batch_size < steps:
            raise UserError(
                f"the data allow {self._plan.rows // batch_size} steps of {batch_size} rows, not {steps}: every source "
                "has max_epochs; raise one, set one to 0, or lower train.steps"
            )
        shuffled = [
            grain.MapDataset.source(rows[name]).shuffle(seed=_shuffle_seed(seed, name)).repeat() for name in self._names
        ]
        self._rows = grain.MapDataset.select_from_datasets(shuffled, self._plan)

    def batch(self, step: int) -> PackedBatch:
        """This process's rows of a step: a PackedBatch of NumPy arrays ``[rows, sequence]``."""
        start = step * self._batch_size
        padding = pack_row([], self._length)
        return stack_rows([self._rows[start + row] if row < self._batch_size else padding for row in self._part])

    def batches(self, start_step: int = 0) -> Iterator[PackedBatch]:
        """The batches from ``start_step`` to the last, read ahead by threads from this call on.

        The iterator is grain's; ``close()`` or letting go of it ends its threads.
        """
        steps = grain.MapDataset.range(start_step, self._steps).map(self.batch)
        batches = iter(steps.to_iter_dataset(grain.ReadOptions(READ_THREADS, BATCHES_AHEAD)))
        batches.start_prefetch()
        return batches

    def sources(self, step: int) -> list[str]:
        """The source of every row of a step's whole batch."""
        start = step * self._batch_size
        return [self._names[self._plan[row][0]] for row in range(start, start + self._batch_size)]

    def epochs(self, step: int) -> dict[str, float]:
        """Passes over each source that the first ``step`` steps make."""
        drawn = self._plan.drawn(step * self._batch_size)
        return {name: n / rows for name, n, rows in zip(self._names, drawn, self._source_rows, strict=True)}


class HeldOut:
    """The held-out documents of all sources, in order of source name.

    Attributes:
        rows: rows in all.
        documents, bytes, targets: of the whole split; bytes are UTF-8, targets all tokens but each document's first.
    """

    def __init__(
        self,
        streams: Mapping[str, TokenStream],
        sequence_length: int,
        *,
        part: Sequence[int] | None = None,
    ):
        """``streams`` by source name; ``part`` numbers the rows of a batch that this process reads, all by default."""
        self._length, self._part = sequence_length, part
        ordered = [streams[name] for name in sorted(streams)]
        self._sources = [RowSource(stream, sequence_length) for stream in ordered]
        self._starts = np.cumsum([0] + [len(source) for source in self._sources])
        self.rows = int(self._starts[-1])
        self.documents = sum(stream.documents for stream in ordered)
        self.bytes = sum(stream.bytes for stream in ordered)
        self.targets = sum(stream.targets for stream in ordered)

    def batches(self, batch_size: int, rows: int = 0) -> Iterator[PackedBatch]:
        """Validation batches, the same ones at every call; the last is filled up with rows of padding.

        Args:
            batch_size: rows per batch over all processes.
            rows: how many rows to validate on, evenly spaced; 0, or more than there are, takes all.

        Yields:
            This process's part of each batch, a PackedBatch of NumPy arrays ``[rows, sequence]``; in it, rows from
            ``batch_size`` on are padding.
        """
        part = range(batch_size) if self._part is None else self._part
        count = min(rows, self.rows) if rows else self.rows
        chosen = [i * self.rows // count for i in range(count)]
        return (
            stack_rows([self._row(chosen, start + row if row < batch_size else count) for row in part])
            for start in range(0, count, batch_size)
        )

    def bits_per_byte(self, nll: float, targets: float) -> float:
        """Bits per byte from the nll summed over ``targets`` targets of these batches [nats]; see packing."""
        return bits_per_byte(nll, targets, self.targets, self.bytes)

    def _row(self, chosen: list[int], at: int) -> PackedBatch:
        if at >= len(chosen):
            return pack_row([], self._length)
        index = chosen[at]
        source = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._sources[source][index - int(self._starts[source])]


def check_shares(sources: Mapping[str, SourceConfig]) -> None:
    """Raises UserError unless there is a source, and every weight and limit makes sense."""
    if not sources:
        raise UserError("data.sources is empty: name at least one source")
    for name, source in sources.items():
        if not source.weight > 0 or not math.isfinite(source.weight) or not source.max_epochs >= 0:
            raise UserError(
                f"source {name!r} has weight {source.weight} and max_epochs {source.max_epochs}: "
                "a weight is above 0, max_epochs is 0 (no limit) or more"
            )


def _limit(max_epochs: float, rows: int) -> int | None:
    return max(1, math.floor(max_epochs * rows)) if max_epochs else None


def _shuffle_seed(seed: int, name: str) -> int:
    """A seed per source: grain adds the epoch to it, so neighbouring seeds would share their shuffles."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest(), "little")
