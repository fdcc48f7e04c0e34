"""The arrays of one program: which row computes which sequence, and what each row is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from k2jax.inference.forward import SCRATCH_PAGE, Chunk
from k2jax.inference.request import MAX_TOP_LOGPROBS, Sampling
from k2jax.inference.sampler import Choice
from k2jax.inference.slots import Running

_EMPTY = Sampling(temperature=0.0)


class Rows(NamedTuple):
    """Sequences and their rows: as many rows on every device, of which the first are used.

    Attributes:
        used: sequence, its row, and how many of its pending ids the program computes.
        count: rows of all devices.
    """

    used: list[tuple[Running, int, int]]
    count: int

    @classmethod
    def of(cls, sequences: Sequence[Running], width: int, devices: int, size: Callable[[int], int]) -> Rows:
        """Rows of ``width`` for sequences.

        Args:
            sequences: at most one row each.
            width: most ids of a row.
            devices: of the mesh.
            size: from the rows that the busiest device needs to those that it gets.
        """
        on = [[running for running in sequences if running.device == device] for device in range(devices)]
        each = size(max(map(len, on)))
        used = [
            (running, device * each + place, min(width, running.pending))
            for device, listed in enumerate(on)
            for place, running in enumerate(listed)
        ]
        return cls(used, devices * each)

    def done(self) -> Iterator[tuple[Running, int]]:
        """Sequences all of whose ids the program computes: they get a new token."""
        return ((running, row) for running, row, count in self.used if count == running.pending)

    def chunk(self, width: int, columns: int) -> tuple[Chunk, np.ndarray]:
        """What is new in each row, with room for ``columns`` pages, and the token after each."""
        tokens, targets = np.zeros((2, self.count, width), np.int32)
        start, counts = np.zeros((2, self.count), np.int32)
        pages = np.full((self.count, columns), SCRATCH_PAGE, np.int32)
        for running, row, count in self.used:
            at = running.computed
            tokens[row, :count] = running.ids[at : at + count]
            following = running.ids[at + 1 : at + count + 1]
            targets[row, : len(following)] = following
            start[row], counts[row] = at, count
            pages[row, : len(running.pages)] = running.pages
        return Chunk(tokens, counts, start, pages), targets

    def choice(self) -> tuple[Choice, bool, bool, int]:
        """How each row draws, and whether any row draws at random, truncates, and asks for how many alternatives."""
        asked, generated = [_EMPTY] * self.count, [0] * self.count
        for running, row, _ in self.used:
            asked[row], generated[row] = running.request.sampling, len(running.request.tokens)
        choice = Choice(
            np.array([one.temperature for one in asked], np.float32),
            np.array([one.top_p for one in asked], np.float32),
            np.array([one.min_p for one in asked], np.float32),
            np.array([one.top_k for one in asked], np.int32),
            np.array([one.seed for one in asked], np.uint32),
            np.array(generated, np.int32),
        )
        drawn = any(one.temperature > 0.0 for one in asked)
        truncated = any(one.top_p < 1.0 or one.top_k or one.min_p for one in asked)
        return choice, drawn, truncated, MAX_TOP_LOGPROBS if any(one.top_logprobs for one in asked) else 0
