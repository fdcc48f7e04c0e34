"""Trajectories as rows of a batch: token in, token out.

A response is trained on in the row that holds its whole path, so that sums over its turns and tokens are sums of one
row. Rows are filled first-fit in the order of the trajectories, which is a function of their keys alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.batch import PackedBatch, stack_rows
from k2jax.losses.targets import PolicyTargets, empty_targets
from k2jax.trajectory import Trajectory

TOKENS_PER_ENTRY = 8
"""Tokens of a row for each entry of its tables of turns and responses: a row takes no more of them than a table has."""


class TrainingSample(NamedTuple):
    """A trajectory to train on, how much better it was than its group, and the number of its class of tasks."""

    trajectory: Trajectory
    advantage: float
    domain: int = 0


def pack(samples: Sequence[TrainingSample], length: int) -> list[PackedBatch]:
    """Rows ``[S]`` of NumPy arrays with the targets of policy losses.

    Args:
        samples: in the order of training. Every path from the root to a leaf is laid out; a sampled node that two paths
            share is trained on in the first of them.
        length: tokens of a row.

    Raises:
        ValueError: a path is longer than a row.
    """
    rows: list[_Row] = []
    for sample in samples:
        segment = _segment(sample)
        row = next((row for row in rows if row.takes(segment)), None)
        if row is None:
            row = _Row(length)
            if not row.takes(segment):
                tokens = segment.tokens
                raise ValueError(f"a trajectory of {tokens} tokens does not fit a row of {length}")
            rows.append(row)
        row.add(segment)
    return [row.packed() for row in rows]


def parts_of(rows: Sequence[PackedBatch], count: int, local_rows: Sequence[int]) -> list[PackedBatch]:
    """Rows as batches of one shape, the last one filled up with padding.

    Args:
        rows: rows ``[S]``, at least one.
        count: rows of a batch over all processes.
        local_rows: numbers of the rows of a batch that this process reads; those from ``count`` on are padding.
    """
    length = len(rows[0].tokens)
    padding = empty_row(length)
    batches = []
    for start in range(0, len(rows), count):
        batch = rows[start : start + count]
        batches.append(stack_rows([batch[row] if row < len(batch) else padding for row in local_rows]))
    return batches


def empty_row(length: int) -> PackedBatch:
    """A row ``[S]`` of padding."""
    entries = max(1, length // TOKENS_PER_ENTRY)
    return PackedBatch(
        tokens=np.zeros(length, np.int32),
        positions=np.zeros(length, np.int32),
        exit=np.arange(length, dtype=np.int32),
        parent=np.full(length, -1, np.int32),
        targets=empty_targets(length, entries, entries),
    )


def ptx_row(row: PackedBatch) -> PackedBatch:
    """A row ``[S]`` of pretraining or SFT as a row whose tokens count in the PTX term alone."""
    empty = empty_row(len(row.tokens))
    return dataclasses.replace(row, targets=empty.targets._replace(ptx=row.targets["weights"]))


class _Piece(NamedTuple):
    """One path of a trajectory: its tokens, and which of them are trained on."""

    tokens: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    temperature: np.ndarray
    turn: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


class _Segment(NamedTuple):
    """All paths of one trajectory, which go into one row together."""

    pieces: list[_Piece]
    turns: list[int]
    advantage: float
    domain: int

    @property
    def tokens(self) -> int:
        return sum(len(piece.tokens) for piece in self.pieces)


def _segment(sample: TrainingSample) -> _Segment:
    trajectory, trained, pieces = sample.trajectory, set(), []
    for leaf in trajectory.leaves():
        path = trajectory.path(leaf)
        new = [index for index in path if index not in trained and trajectory.nodes[index].mask.any()]
        if new:
            pieces.append(_piece(trajectory, path, set(new)))
            trained |= set(new)
    turns = sorted({int(turn) for piece in pieces for turn in np.unique(piece.turn[piece.mask > 0])})
    return _Segment(pieces, turns, sample.advantage, sample.domain)


def _piece(trajectory: Trajectory, path: Sequence[int], new: set[int]) -> _Piece:
    nodes = [trajectory.nodes[index] for index in path]
    mask = [node.mask * (index in new) for index, node in zip(path, nodes, strict=True)]
    return _Piece(
        np.concatenate([node.tokens for node in nodes]),
        np.concatenate(mask).astype(np.float32),
        np.concatenate([node.logprobs for node in nodes]),
        np.concatenate([np.full(len(node.tokens), node.temperature, np.float32) for node in nodes]),
        np.concatenate([np.full(len(node.tokens), node.turn, np.int32) for node in nodes]),
    )


class _Row:
    """A row that is being filled."""

    def __init__(self, length: int):
        self._row, self._length = empty_row(length), length
        self._entries = self._row.targets.response_weight.shape[0]
        self._end = self._turns = self._responses = 0

    def takes(self, segment: _Segment) -> bool:
        return (
            self._end + segment.tokens <= self._length
            and self._turns + len(segment.turns) <= self._entries
            and self._responses < self._entries
        )

    def add(self, segment: _Segment) -> None:
        numbers = {turn: self._turns + index for index, turn in enumerate(segment.turns)}
        for piece in segment.pieces:
            self._add_piece(piece, segment, numbers)
        targets: PolicyTargets = self._row.targets
        sampled = sum(float(piece.mask.sum()) for piece in segment.pieces)
        for turn, number in numbers.items():
            targets.turn_advantage[number] = segment.advantage
            targets.turn_tokens[number] = sum(float(piece.mask[piece.turn == turn].sum()) for piece in segment.pieces)
            targets.turn_weight[number] = 1 / len(numbers)
        if numbers:
            targets.response_advantage[self._responses] = segment.advantage
            targets.response_tokens[self._responses] = sampled
            targets.response_weight[self._responses] = 1.0
            self._responses += 1
        self._turns += len(numbers)

    def packed(self) -> PackedBatch:
        return self._row

    def _add_piece(self, piece: _Piece, segment: _Segment, numbers: dict[int, int]) -> None:
        start, end = self._end, self._end + len(piece)
        row, targets = self._row, self._row.targets
        row.tokens[start:end] = piece.tokens
        row.positions[start:end] = np.arange(len(piece))
        row.exit[start:end] = end
        row.parent[start + 1 : end] = np.arange(start, end - 1)
        sampled = np.flatnonzero(piece.mask)
        where = start + sampled
        targets.mask[where] = targets.weight[where] = 1.0
        targets.advantage[where] = segment.advantage
        targets.domain[where] = segment.domain
        targets.old_logprob[where] = targets.behavior_logprob[where] = piece.logprobs[sampled]
        targets.temperature[where] = piece.temperature[sampled]
        targets.turn[where] = [numbers[int(turn)] for turn in piece.turn[sampled]]
        targets.response[where] = self._responses
        self._end = end


def in_updates(groups: Sequence[Sequence[TrainingSample]], updates: int) -> Iterator[list[TrainingSample]]:
    """Samples of each optimizer update: whole groups, in order, as evenly as they divide; empty ones are left out."""
    ends = np.linspace(0, len(groups), updates + 1).round().astype(int)
    for start, end in itertools.pairwise(ends):
        if samples := [sample for group in groups[start:end] for sample in group]:
            yield samples
