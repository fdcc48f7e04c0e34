"""Trajectories as rows of a batch: token in, token out.

Every path of a trajectory is stored by itself, or what the paths of a group share is stored once (Tree Training,
KAT-Coder-V2, section 3.3.2): a row then holds trees in depth-first order, ``positions`` are depths, ``parent`` leads
from the first token of a branch to the one that it forks from, and ``exit`` is where a token's subtree ends. Both
layouts give the same gradient. Which rows there are is a function of the samples, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.batch import NO_EXPERTS, PackedBatch
from k2jax.config.schema import PackingConfig
from k2jax.data.images.batches import ImageBatches
from k2jax.losses.targets import PolicyTargets, empty_targets
from k2jax.rl.packing.fragments import Fragment, PlacedPath, RowSize, fragments
from k2jax.rl.packing.images import ImageTable, batch_of
from k2jax.rl.packing.placement import place
from k2jax.rl.packing.training_paths import Routes, TrainingPath, TrainingResponse, TrainingSample, training_responses
from k2jax.text.media_reading import MediaReader

TOKENS_PER_ENTRY = 4
"""Tokens of a row for each entry of its tables of turns and responses: a row takes no more of them than a table has."""


class ImageSource(NamedTuple):
    """Where the images of rows come from.

    Attributes:
        reader: reads those of messages.
        patches: that a row has room for.
    """

    reader: MediaReader
    patches: int


class PathPlace(NamedTuple):
    """Where a path of a response went.

    Attributes:
        row: number of the row.
        index_T: int ``[T]``, index in the row of every token of the path.
        first_turn: entry of the path's first turn in the row's table of turns; the others follow it.
        path: the path.
        response: whose path it is.
    """

    row: int
    index_T: np.ndarray
    first_turn: int
    path: TrainingPath
    response: TrainingResponse


class PackedRows(NamedTuple):
    """Rows, and how well they are used.

    Attributes:
        rows: ``[S]`` each.
        stored_tokens: tokens in them, padding left out.
        path_tokens: tokens that they would hold if every path were stored by itself.
        places: where every path is.
        too_large: responses that fit no row, and are in none.
    """

    rows: list[PackedBatch]
    stored_tokens: int
    path_tokens: int
    places: Sequence[PathPlace] = ()
    too_large: Sequence[TrainingResponse] = ()

    @property
    def padding(self) -> float:
        """Share of the rows that is padding."""
        capacity = sum(len(row.tokens) for row in self.rows)
        return 1 - self.stored_tokens / capacity if capacity else 0.0

    @property
    def tokens_saved(self) -> float:
        """Tokens in all paths over tokens stored, 1 or more."""
        return self.path_tokens / self.stored_tokens if self.stored_tokens else 1.0


def pack(
    samples: Sequence[TrainingSample],
    length: int,
    config: PackingConfig,
    *,
    splits_responses: bool = False,
    routes: Routes | None = None,
    images: ImageSource | None = None,
) -> PackedRows:
    """Rows ``[S]`` of NumPy arrays with the targets of policy losses.

    Args:
        samples: in the order of training; those of a group stand together.
        length: tokens of a row.
        config: whether what paths share is stored once, and how a sampled token that they share counts.
        splits_responses: whether a response of several paths that is larger than a row may be split, which suits
            losses over tokens and turns.
        routes: expert layers and active experts of the model, where the rows hold the recorded experts. A token that
            paths share has those of the path that is stored first.
        images: of a model with vision, whose rows all have ``patches``; None of a model of text.

    Raises:
        UserError: an image cannot be read.
    """
    reader, patches = images or (None, 0)
    room, shared = empty_row_size(length)._replace(patches=patches), config.shared_tokens
    responses = [one for sample in samples for one in training_responses(sample, shared, routes, reader)]
    parts, too_large = fragments(responses, config.layout, room, splits_responses=splits_responses)
    rows, places = [], []
    for indices in place(np.array([part.size for part in parts], int), room):
        row = _Row(length, routes, ImageTable(length) if images else None)
        for index in indices:
            places += [each._replace(row=len(rows)) for each in row.add(parts[index])]
        rows.append(row.packed())
    stored = sum(part.size.tokens for part in parts)
    return PackedRows(rows, stored, sum(len(place.path) for place in places), places, too_large)


def parts_of(
    rows: Sequence[PackedBatch], count: int, local_rows: Sequence[int], images: ImageBatches | None = None
) -> list[PackedBatch]:
    """Rows as batches of one shape, the last one filled up with padding.

    Args:
        rows: rows ``[S]``, at least one.
        count: rows of a batch over all processes.
        local_rows: numbers of the rows of a batch that this process reads; those from ``count`` on are padding.
        images: of a model with vision, see ``packing.images.image_batches``.
    """
    padding = padding_like(rows[0])
    starts = range(0, len(rows), count)
    return [batch_of(rows[start : start + count], padding, local_rows, images) for start in starts]


def empty_row(length: int, routes: Routes | None = None) -> PackedBatch:
    """A row ``[S]`` of padding, with a leaf for replayed experts where ``routes`` says how many."""
    room = empty_row_size(length)
    return PackedBatch(
        tokens=np.zeros(length, np.int32),
        positions=np.zeros(length, np.int32),
        exit=np.arange(length, dtype=np.int32),
        parent=np.full(length, -1, np.int32),
        targets=empty_targets(length, room.turns, room.responses),
        experts=None if routes is None else np.full((length, *routes), NO_EXPERTS, np.int16),
    )


def padding_like(row: PackedBatch) -> PackedBatch:
    """A row of padding with the leaves and the length of ``row [S]``."""
    return empty_row(len(row.tokens), None if row.experts is None else row.experts.shape[1:])


def empty_row_size(length: int) -> RowSize:
    """What an empty row of so many tokens has room for."""
    entries = max(1, length // TOKENS_PER_ENTRY)
    return RowSize(length, entries, entries)


def ptx_row(row: PackedBatch, routes: Routes | None = None) -> PackedBatch:
    """A row ``[S]`` of pretraining or SFT as a row whose tokens count in the PTX term alone; routes as of ``pack``."""
    empty = empty_row(len(row.tokens), routes)
    return empty.replace(
        tokens=row.tokens,
        positions=row.positions,
        exit=row.exit,
        parent=row.parent,
        targets=empty.targets._replace(ptx=row.targets["weights"]),
    )


class _Row:
    """A row that is being filled."""

    def __init__(self, length: int, routes: Routes | None, images: ImageTable | None):
        self._row, self._images = empty_row(length, routes), images
        self._advantages_S = np.zeros(length, np.float64)  # summed over the responses of each token
        self._positive_S = np.zeros(length, np.float64)  # over those whose advantage is above 0
        self._end = self._turns = self._responses = 0

    def add(self, fragment: Fragment) -> list[PathPlace]:
        """Stores a fragment and returns where its paths are, as if this were row 0."""
        numbers: dict[int, int] = {}
        places = []
        path_T = np.zeros(0, int)  # index in the row of every token of the path that was stored last
        for placed in fragment.paths:
            path_T = self._store(placed, path_T)
            response = placed.response
            if id(response) not in numbers:
                numbers[id(response)] = self._responses
                self._responses += 1
            places.append(PathPlace(0, path_T, self._turns, placed.path, response))
            self._count(placed, path_T, numbers[id(response)])
        self._row.exit[path_T] = self._end
        return places

    def packed(self) -> PackedBatch:
        targets: PolicyTargets = self._row.targets
        targets.weight[:] = targets.mask
        targets.advantage[:] = self._advantages_S / np.maximum(targets.mask, 1)
        targets.positive_advantage[:] = self._positive_S / np.maximum(targets.mask, 1)
        if self._images is None:
            return self._row
        return self._row.replace(media=self._images.media, patches=self._images.patches)

    def _store(self, placed: PlacedPath, before_T: np.ndarray) -> np.ndarray:
        """Stores the tokens that the path before it does not have, and returns where all tokens of the path are."""
        path, shared, start, row = placed.path, placed.shared, self._end, self._row
        row.exit[before_T[shared:]] = start
        self._end = end = start + len(path) - shared
        path_T = np.concatenate([before_T[:shared], np.arange(start, end)])
        row.tokens[start:end] = path.tokens_T[shared:]
        row.positions[start:end] = np.arange(shared, len(path))
        row.parent[start:end] = np.concatenate([[-1], path_T[:-1]])[shared:]
        if row.experts is not None:
            row.experts[start:end] = path.experts_TLK[shared:]
        if self._images is not None:
            self._images.add(path.media, path_T)
        return path_T

    def _count(self, placed: PlacedPath, path_T: np.ndarray, number: int) -> None:
        """Counts the path's sampled tokens in its response, which has a number in the row."""
        path, response, targets = placed.path, placed.response, self._row.targets
        where = path_T[path.counted_T]
        targets.mask[where] += 1
        targets.domain[where] = response.domain
        self._advantages_S[where] += response.advantage
        self._positive_S[where] += max(response.advantage, 0.0)
        targets.old_logprob[where] = targets.behavior_logprob[where] = path.logprobs_T[path.counted_T]
        targets.temperature[where] = path.temperatures_T[path.counted_T]
        for first, last in path.turns:
            turn, self._turns = self._turns, self._turns + 1
            targets.turn_first[turn], targets.turn_last[turn] = path_T[first], path_T[last]
            targets.turn_response[turn] = number
            targets.turn_advantage[turn] = response.advantage
            targets.turn_tokens[turn] = path.counted_T[first : last + 1].sum()
            targets.turn_weight[turn] = 1 / response.turns
        targets.response_advantage[number] = response.advantage
        targets.response_tokens[number] = response.tokens
        # The share of its turns: where a response had to be split, its rows have the weight of one response.
        targets.response_weight[number] += len(path.turns) / response.turns


def in_updates(groups: Sequence[Sequence[TrainingSample]], updates: int) -> Iterator[list[TrainingSample]]:
    """Samples of each optimizer update: whole groups, in order, as evenly as they divide; empty ones are left out."""
    ends = np.linspace(0, len(groups), updates + 1).round().astype(int)
    for start, end in itertools.pairwise(ends):
        if samples := [sample for group in groups[start:end] for sample in group]:
            yield samples


def equalize_domains(rows: Sequence[PackedBatch]) -> None:
    """Weighs the tokens of an update's rows, in place, so that every class of tasks in it counts equally.

    A mean over tokens becomes the mean over classes of the means over their tokens; the weights still add up to the
    number of sampled tokens, each counted as often as its responses.

    Args:
        rows: rows ``[S]`` with PolicyTargets, of the whole update.
    """
    domain = np.concatenate([row.targets.domain for row in rows])
    mask = np.concatenate([row.targets.mask for row in rows])
    counts = {number: mask[domain == number].sum() for number in np.unique(domain[mask > 0])}
    for row in rows:
        for number, count in counts.items():
            own_S = row.targets.domain == number
            row.targets.weight[own_S] = row.targets.mask[own_S] * (mask.sum() / (len(counts) * count))
