"""The arrays of one program: which row computes which sequence, and what each row is given."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from k2jax.client import Sampling
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.inference.adjustments import Adjustments, empty_adjustments
from k2jax.inference.decode import STEPS, Continuation
from k2jax.inference.forward import SCRATCH_PAGE, Chunk, MediaRows, Targets
from k2jax.inference.media import within
from k2jax.inference.sampler import Choice
from k2jax.inference.scheduler import Sequence
from k2jax.inference.shapes import at_least

_EMPTY = Sampling(temperature=0.0)


class BatchRows(NamedTuple):
    """Sequences and their rows. Every device has the same number of rows, of which the first are used.

    Attributes:
        used: sequence, its row, and how many of its pending ids the program computes.
        count: rows of all devices.
    """

    used: list[tuple[Sequence, int, int]]
    count: int

    @classmethod
    def of(cls, sequences: abc.Sequence[Sequence], width: int, devices: int, size: Callable[[int], int]) -> BatchRows:
        """Rows of ``width`` ids for sequences.

        Args:
            sequences: at most one row each.
            width: most ids of a row.
            devices: of the mesh.
            size: the number of rows that a device gets by the number that the busiest one needs.
        """
        per_device = [[sequence for sequence in sequences if sequence.device == device] for device in range(devices)]
        rows = size(max(map(len, per_device)))
        used = [
            (sequence, device * rows + row, min(width, sequence.pending))
            for device, listed in enumerate(per_device)
            for row, sequence in enumerate(listed)
        ]
        return cls(used, devices * rows)

    def done(self) -> Iterator[Sequence]:
        """Sequences all of whose ids the program computes: they get a new token."""
        return (sequence for sequence, _, count in self.used if count == sequence.pending)

    def asks(self, condition: Callable[[Sampling], bool]) -> bool:
        """Whether the sampling of any sequence asks for something."""
        return any(condition(sequence.request.sampling) for sequence, _, _ in self.used)

    def max_alternatives(self) -> int:
        """The most alternatives that a scored prompt asks for."""
        asked = (sequence.request.sampling for sequence, _, _ in self.used)
        return max((sampling.top_logprobs for sampling in asked if sampling.prompt_logprobs), default=0)

    def chunk(self, width: int, columns: int, page_size: int) -> tuple[Chunk, Targets]:
        """The new ids of each row, which read ``columns`` pages, and the token after each of them."""
        tokens, targets = np.zeros((2, self.count, width), np.int32)
        start, counts = np.zeros((2, self.count), np.int32)
        temperature = np.ones(self.count, np.float32)
        pages = np.full((self.count, columns), SCRATCH_PAGE, np.int32)
        written = np.full((self.count, width), SCRATCH_PAGE * page_size, np.int32)
        for sequence, row, count in self.used:
            first = sequence.computed
            tokens[row, :count] = sequence.ids[first : first + count]
            following = sequence.ids[first + 1 : first + count + 1]
            targets[row, : len(following)] = following
            start[row], counts[row] = first, count
            temperature[row] = sequence.request.scored_temperature
            read = sequence.pages[: -(-first // page_size)]
            pages[row, : len(read)] = read
            places = (divmod(position, page_size) for position in range(first, first + count))
            written[row, :count] = [sequence.pages[page] * page_size + place for page, place in places]
        return Chunk(tokens, counts, start, pages, written), Targets(targets, temperature)

    def continuation(self, counts: Mapping[Sequence, int], columns: int) -> Continuation:
        """The last id of each row and ``columns`` of its pages, for as many tokens as are wanted of its sequence."""
        tokens, count, start = np.zeros((3, self.count), np.int32)
        pages = np.full((self.count, columns), SCRATCH_PAGE, np.int32)
        for sequence, row, _ in self.used:
            tokens[row], count[row], start[row] = sequence.ids[-1], counts[sequence], sequence.computed
            read = sequence.pages[:columns]
            pages[row, : len(read)] = read
        return Continuation(tokens, count, start, pages)

    def images(self) -> dict[bytes, PatchChunk]:
        """The images that stand for ids which the program computes, by the digests of their contents."""
        return {
            placed.digest: placed.chunk
            for sequence, _, count in self.used
            for placed in within(sequence.request.media, sequence.computed, sequence.computed + count)
        }

    def media(self, width: int, features: Mapping[bytes, np.ndarray]) -> MediaRows:
        """The features in their places.

        Args:
            width: most ids of a row.
            features: ``[features, d_model]`` of each of ``images``, at least one.
        """
        some = next(iter(features.values()))
        rows = np.zeros((self.count, width, some.shape[-1]), some.dtype)
        is_placed = np.zeros((self.count, width), bool)
        for sequence, row, count in self.used:
            first = sequence.computed
            for placed in within(sequence.request.media, first, first + count):
                start, stop = max(first, placed.start), min(first + count, placed.stop)
                cut = features[placed.digest][start - placed.start : stop - placed.start]
                rows[row, start - first : stop - first] = cut
                is_placed[row, start - first : stop - first] = True
        return MediaRows(rows, is_placed)

    def mask(self, vocab: int) -> np.ndarray | None:
        """Which tokens each row may draw, see ``sampler.sample``; None where all may draw every token."""
        constrained = [(s.request.constraint, row) for s, row, _ in self.used if s.request.constraint is not None]
        constrained = [(constraint, row) for constraint, row in constrained if constraint.excludes]
        if not constrained:
            return None
        words = np.full((self.count, -(-vocab // 32)), ~np.uint32(0))
        for constraint, row in constrained:
            constraint.fill(words[row])
        return words

    def choice(self, vocab: int, sizes: list[int]) -> Choice:
        """How each row draws.

        Args:
            vocab: rows of the model's embedding.
            sizes: numbers of tokens, growing, for which programs have penalties and biases.
        """
        asked, generated = [_EMPTY] * self.count, [0] * self.count
        for sequence, row, _ in self.used:
            asked[row], generated[row] = sequence.request.sampling, len(sequence.request.tokens)
        return Choice(
            np.array([sampling.temperature for sampling in asked], np.float32),
            np.array([sampling.top_p for sampling in asked], np.float32),
            np.array([sampling.min_p for sampling in asked], np.float32),
            np.array([sampling.top_k for sampling in asked], np.int32),
            seed=np.array([sampling.seed for sampling in asked], np.uint32),
            index=np.array(generated, np.int32),
            alternatives=np.array([sampling.top_logprobs > 0 for sampling in asked]),
            adjustments=self._adjustments(vocab, sizes),
        )

    def _adjustments(self, vocab: int, sizes: list[int]) -> Adjustments | None:
        changed = [(s.request.adjustments, row) for s, row, _ in self.used if s.request.adjustments is not None]
        if not changed:
            return None
        needed = max(len(state) for state, _ in changed)
        adjustments = empty_adjustments(self.count, at_least(sizes, needed) + STEPS, vocab)
        for state, row in changed:
            state.fill(adjustments, row)
        return adjustments
