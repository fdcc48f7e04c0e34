"""Batches for training and validation: pure functions of (seed, step), independent of the number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import itertools
import os
from typing import TYPE_CHECKING

from absl import flags
import grain
import numpy as np

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.config.schema import SourceConfig
from k2jax.data.filled_mixture import FilledMixture
from k2jax.data.packing import bits_per_byte, shuffle_seed
from k2jax.data.permutation import LARGEST_OF_GRAIN, DrawnRows, shuffled
from k2jax.data.planned_rows import drawn_before, drawn_rows
from k2jax.data.processes import end_with
from k2jax.data.storage.tier_filler import FilledBatches, RowStretches, TierFiller
from k2jax.data.vision_share import VisionShare
from k2jax.errors import UserError
from k2jax.mixture_plan import MixturePlan

if TYPE_CHECKING:
    from k2jax.data.filled_mixture import SplitRows
    from k2jax.data.images.batches import ImageBatches
    from k2jax.data.images.image_rows import PlannedRow
    from k2jax.data.images.placement import PatchRows
    from k2jax.data.storage.tier_filler import Stretch

READ_THREADS = 1  # Packing holds the interpreter's lock: more threads would only wait.
PREFETCHED_BATCHES = 4
_CHECKED_STEPS = 2**14  # at a time


class DataLoader:
    """Batches of the training mixture; a process may read only some rows of each batch.

    Nothing is held for a row, a step or a document: the order of rows is a permutation that is computed index by index.
    """

    def __init__(
        self,
        rows: Mapping[str, SplitRows],
        sources: Mapping[str, SourceConfig],
        *,
        batch_size: int,
        seed: int,
        steps: int,
        local_rows: Sequence[int] | None = None,
        images: ImageBatches | None = None,
        workers: int = 0,
        vision_share: VisionShare | None = None,
    ):
        """Plans the whole run.

        Args:
            rows: training rows of each source.
            sources: weight and limit of each source.
            batch_size: rows of a step over all processes.
            seed: seed of the order of rows.
            steps: number of batches.
            local_rows: indices of a batch's rows that this process reads, all by default; rows from ``batch_size`` on
                are padding.
            images: how images of a batch are laid out; None where there are none.
            workers: processes that make batches; 0 is a thread.
            vision_share: shares of tokens of the sources with images; None leaves all to the weights.

        Raises:
            UserError: if the data do not suffice for all steps, or rows of patches for the images of one.
        """
        self._names = sorted(sources)
        self._local_rows = range(batch_size) if local_rows is None else local_rows
        self._batch_size, self._steps, self._seed, self._images = batch_size, steps, seed, images
        self._length, self._workers = next(iter(rows.values())).length, workers
        self._own, self._largest = frozenset(self._local_rows), max(map(len, rows.values()))
        self._has_images = [_shows_images(rows[name]) for name in self._names]
        mixture = FilledMixture(rows, sources, vision_share, batch_size=batch_size, steps=steps, seed=seed)
        self._filled, rows = mixture.filled, mixture.rows
        self._source_rows = [len(rows[name]) for name in self._names]
        self._plan = MixturePlan(mixture.weighting, mixture.limits)
        if self._plan.rows is not None and self._plan.rows // batch_size < steps:
            which = "every source with images, or every other, has" if vision_share else "every source has"
            raise UserError(
                f"the data allow {self._plan.rows // batch_size} steps of {batch_size} rows, not {steps}: {which} "
                "max_epochs; raise one, set one to 0, or lower train.steps"
            )
        if images:
            self._check_patch_rows(images.shape)
        self._shuffled = [_ordered(rows[name], shuffle_seed(seed, name)) for name in self._names]
        stored = [name for name in self._names if name not in self._filled and _is_stored(rows[name])]
        self._stretches = {
            self._names.index(name): _ordered(RowStretches(rows[name]), shuffle_seed(seed, name)) for name in stored
        }

    def _check_patch_rows(self, shape: PatchRows) -> None:
        """Raises UserError where a step has more rows with images than rows of patches hold, however full."""
        held = shape.rows // shape.each
        if held >= self._batch_size:
            return
        most, fullest = 0, 0
        for first in range(0, self._steps, _CHECKED_STEPS):
            steps = np.arange(first, min(first + _CHECKED_STEPS, self._steps) + 1)
            drawn = drawn_before(self._plan, steps * self._batch_size)
            seen = np.diff(drawn[:, self._has_images].sum(1))
            if seen.max() > most:
                most, fullest = int(seen.max()), first + int(seen.argmax())
        if most > held:
            of_each = "" if shape.each == 1 else f"with up to {shape.each} rows of patches each "
            raise UserError(
                f"step {fullest + 1} has {most} rows with images, {of_each}and {shape.rows} rows of patches hold "
                f"{held}: set config.data.images.rows to {most * shape.each / self._batch_size:.3g} or more"
            )

    @property
    def identity(self) -> list[str]:
        """What decides the batches beside the corpus: a run is continued only where it is the same."""
        return ["filled"] * bool(self._filled) + ["permuted"] * (self._largest > LARGEST_OF_GRAIN)

    def batch(self, step: int) -> PackedBatch:
        """This process's rows of a step's batch, NumPy arrays ``[rows, sequence]``."""
        sources, draws = (each.tolist() for each in self._drawn(step))
        padding = pack_row([], self._length)

        def row_of(row: int) -> PackedBatch | PlannedRow:
            """A row of the batch; one of text that another process reads is not packed here."""
            if row >= self._batch_size or (row not in self._own and not self._has_images[sources[row]]):
                return padding
            return self._row(sources[row], draws[row])

        if self._images is None:
            return stack_rows([row_of(row) for row in self._local_rows])
        return self._images.batch(row_of, self._local_rows, (self._seed, step))

    def batches(self, start_step: int = 0) -> Iterator[PackedBatch]:
        """Iterates over the batches from ``start_step`` to the last; they are made ahead from this call on.

        ``close()`` or deleting the iterator ends its threads and processes. The batches and their order do not depend
        on the number of processes. Of text that lies in a store, the disk tier is filled ahead.
        """
        filler = TierFiller(self._read_by, range(start_step, self._steps)) if self._stretches else None
        steps = grain.MapDataset.range(start_step, self._steps).map(self.batch)
        steps = steps.to_iter_dataset(grain.ReadOptions(READ_THREADS, PREFETCHED_BATCHES))
        if self._workers:
            if not flags.FLAGS.is_parsed():  # grain reads flags of its own; notebooks and k2jax.cli parse none
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=PREFETCHED_BATCHES)
            steps = steps.mp_prefetch(options, functools.partial(_end_with, os.getpid()))
        batches = iter(steps)
        batches.start_prefetch()
        return batches if filler is None else FilledBatches(batches, filler)

    def _read_by(self, step: int) -> list[Stretch]:
        """What this process reads of a store for a step, in order."""
        sources, draws = (each.tolist() for each in self._drawn(step))
        own = [row for row in self._local_rows if row < self._batch_size and sources[row] in self._stretches]
        return [each for row in own for each in self._stretches[sources[row]][draws[row]]]

    def rows(self, step: int, numbers: Sequence[int]) -> PackedBatch:
        """Some rows of text of a step's batch, whichever processes read them, NumPy arrays ``[numbers, sequence]``."""
        sources, draws = (each.tolist() for each in self._drawn(step))
        return stack_rows([self._row(sources[number], draws[number]) for number in numbers])

    def sources(self, step: int) -> list[str]:
        """Name of the source of every row of a step's batch, over all processes."""
        return [self._names[source] for source in self._drawn(step)[0].tolist()]

    def _drawn(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The source of every row of a step, and how many of its rows were drawn before."""
        return drawn_rows(self._plan, step * self._batch_size, (step + 1) * self._batch_size)

    def _row(self, source: int, draw: int) -> PackedBatch | PlannedRow:
        filled = self._filled.get(self._names[source])
        return filled.row(draw) if filled else self._shuffled[source][draw]

    def epochs(self, step: int) -> dict[str, float]:
        """Number of passes over each source in the first ``step`` steps."""
        drawn = self._plan.drawn(step * self._batch_size)
        return {name: n / rows for name, n, rows in zip(self._names, drawn, self._source_rows, strict=True)}


class _WindowsInTurn:
    """The windows of a phase's rows, each in an order of its own, one after the other, and again from the first."""

    def __init__(self, windows: Sequence[SplitRows], seed: int):
        self._starts = np.cumsum([0, *map(len, windows)])
        self._orders = [shuffled(rows, (seed + number) % 2**32) for number, rows in enumerate(windows)]

    def __getitem__(self, draw: int) -> PackedBatch:
        """The row that is drawn after ``draw`` others."""
        again, place = divmod(draw, int(self._starts[-1]))
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        start, end = map(int, self._starts[number : number + 2])
        return self._orders[number][again * (end - start) + place - start]


def _ordered(rows: SplitRows, seed: int) -> DrawnRows:
    """The rows in a seeded order without an end; those of a phase window after window."""
    windows = getattr(rows, "windows", [rows])
    return shuffled(rows, seed) if len(windows) == 1 else _WindowsInTurn(windows, seed)


def _is_stored(rows: SplitRows) -> bool:
    """Whether rows are of text that lies in a store."""
    return hasattr(rows, "stretches") and rows.stream.is_stored


def _end_with(parent: int, worker: int, workers: int) -> None:
    """What grain calls in a worker."""
    end_with(parent)


class HeldOut:
    """Held-out documents of all sources, in the order of the sources' names.

    Attributes:
        names: of the sources.
        rows: number of rows.
        documents: number of documents.
        bytes: UTF-8 bytes of the documents.
        targets: number of predicted tokens: all tokens but the first of each document.
    """

    def __init__(
        self,
        rows: Mapping[str, SplitRows],
        *,
        local_rows: Sequence[int] | None = None,
        images: ImageBatches | None = None,
    ):
        """Takes the rows of every source.

        Args:
            rows: held-out rows of each source.
            local_rows: indices of a batch's rows that this process reads, all by default.
            images: how images of a batch are laid out; None where there are none.
        """
        self._local_rows, self._images = local_rows, images
        self.names = sorted(rows)
        self._sources = [rows[name] for name in self.names]
        self._length = self._sources[0].length
        self._starts = np.cumsum([0] + [len(source) for source in self._sources])
        streams = [source.stream for source in self._sources]
        self.rows = int(self._starts[-1])
        self.documents = sum(stream.documents for stream in streams)
        self.bytes = sum(stream.bytes for stream in streams)
        self.targets = sum(stream.targets for stream in streams)

    def batches(self, batch_size: int, rows: int = 0, source: str | None = None) -> Iterator[PackedBatch]:
        """Iterates over the validation batches, the same ones at every call; the last may have rows of padding.

        Args:
            batch_size: rows of a batch over all processes.
            rows: number of validation rows, evenly spaced; 0 takes all rows.
            source: whose rows these are; None is all sources.

        Yields:
            This process's rows of each batch, NumPy arrays ``[rows, sequence]``; rows from ``batch_size`` on are
            padding.
        """
        local_rows = range(batch_size) if self._local_rows is None else self._local_rows
        number = None if source is None else self.names.index(source)
        first, stop = (0, self.rows) if number is None else map(int, self._starts[number : number + 2])
        count = min(rows, stop - first) if rows else stop - first
        chosen = functools.partial(_spaced, first, stop, count)
        return (self._batch(group, local_rows) for group in self._grouped(chosen, batch_size))

    def _grouped(self, chosen: Callable[[], Iterator[int]], batch_size: int) -> Iterator[list[int]]:
        """Rows by batches: no more with images than there are rows of patches."""
        shape = None if self._images is None else self._images.shape
        most = batch_size if shape is None else min(batch_size, shape.rows // shape.each)
        text, seen = chosen(), iter(())
        if most < batch_size:
            text = (index for index in chosen() if not _shows_images(self._source_of(index)[0]))
            seen = (index for index in chosen() if _shows_images(self._source_of(index)[0]))
        while group := list(itertools.islice(seen, most)):
            yield group + list(itertools.islice(text, batch_size - len(group)))
        while group := list(itertools.islice(text, batch_size)):
            yield group

    def beginnings(self, count: int, tokens: int) -> list[np.ndarray]:
        """The first tokens of documents, or the prompts of conversations, evenly spaced over all sources.

        Sources with images have none: their prompts are not tokens alone.

        Args:
            count: number of documents, at most those that there are.
            tokens: most tokens of each document.
        """
        sources = [source for source in self._sources if not _shows_images(source)]
        ends = np.cumsum([source.stream.documents for source in sources])
        total = sum(source.stream.documents for source in sources)
        count, parts = min(count, total), []
        for number in (np.arange(count) * total // max(count, 1)).tolist():
            index = int(np.searchsorted(ends, number, side="right"))
            source = sources[index]
            parts.append(source.beginning(number - int(ends[index]) + source.stream.documents, tokens))
        return parts

    def bits_per_byte(self, nll: float, targets: float) -> float | None:
        """Bits per byte from the negative log-likelihood summed over ``targets`` targets [nats]; see ``packing``.

        None where some sources have images, whose records are mostly not text.
        """
        if any(map(_shows_images, self._sources)):
            return None
        return bits_per_byte(nll, targets, self.targets, self.bytes)

    def _batch(self, group: list[int], local_rows: Sequence[int]) -> PackedBatch:
        row_of = lambda row: self._row(group, row)  # noqa: E731
        if self._images is None:
            return stack_rows([row_of(row) for row in local_rows])
        return self._images.batch(row_of, local_rows, None)

    def _row(self, group: list[int], number: int) -> PackedBatch | PlannedRow:
        """Row ``group[number]``; a row of padding beyond the end of the group."""
        if number >= len(group):
            return pack_row([], self._length)
        source, row = self._source_of(group[number])
        return source[row]

    def _source_of(self, index: int) -> tuple[SplitRows, int]:
        """The source of a row, and its number there."""
        source = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._sources[source], index - int(self._starts[source])


def _spaced(first: int, stop: int, count: int) -> Iterator[int]:
    """So many numbers of a range, evenly spaced."""
    return (first + i * (stop - first) // count for i in range(count))


def _shows_images(rows: SplitRows) -> bool:
    """Whether rows have images: only those of text say how their documents begin."""
    return not hasattr(rows, "beginning")
