"""log pi_old by the trainer's own forward passes, before the first update of an iteration.

One pass scores the rows as they train. Several are packed differently and averaged: the passes of a model with experts
differ where a batch decides what is dropped or how sums round, and a mean of M has an M-th of their variance (MCLA,
KAT-Coder-V2, section 3.3.1, equation 11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import time

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.base import Method, Methods, Parts, refuse_images
from k2jax.rl.packing.repacking import repacked
from k2jax.rl.packing.rows import PackedRows, padding_like

Score = Callable[[Sequence[PackedBatch]], np.ndarray]
ROUNDING = 1e-5
"""Standard deviation across passes up to which they differ by float32's rounding alone [nats]."""


class MCLA(Method):
    """Fills ``old_logprob`` of an iteration's rows.

    All updates of an iteration get theirs before the first one: log pi_old is that of the weights that sampled.

    Args:
        config: the experiment.
        score: a forward pass with the weights as they are: log-probabilities ``[rows, S]`` of rows ``[S]``.
        note: prints a line.
    """

    def __init__(self, config: Config, score: Score, note: Callable[[str], None]):
        self._seed, self._mcla, self._said = config.train.seed, config.rl.loss.mcla, False
        self._score, self._note = score, note
        self._record: Mapping[str, float] = {}

    @staticmethod
    def used(config: Config) -> bool:
        """Whether log pi_old is recomputed."""
        return config.rl.loss.old != "rollout"

    @staticmethod
    def check(config: Config) -> None:
        """Passes with other packings are not built for images; raises UserError."""
        refuse_images(config, "rl.loss.mcla.passes", config.rl.loss.mcla.passes > 1)

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> MCLA:
        """See ``Method``."""
        return cls(parts.config, parts.score, lambda line: parts.run.note(line))

    def prepare(self, step: int, updates: Mapping[int, PackedRows]) -> Mapping[int, PackedRows]:
        """The updates with log pi_old; see ``fill``."""
        self._record = {}
        if not updates:
            return updates
        filled, self._record = self.fill(step, [packed.rows for packed in updates.values()])
        pairs = zip(updates.items(), filled, strict=True)
        return {number: packed._replace(rows=rows) for (number, packed), rows in pairs}

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, float]:
        """Metrics of ``prepare``."""
        return self._record

    def fill(
        self, step: int, updates: Sequence[Sequence[PackedBatch]]
    ) -> tuple[list[list[PackedBatch]], Mapping[str, float]]:
        """The rows of all updates of an iteration with log pi_old, and what is reported of it.

        Args:
            step: the iteration.
            updates: rows ``[S]`` of each update.

        Returns:
            New rows in the same order, and metrics: ``recompute_seconds``, and with several passes ``mcla_std``, the
            standard deviation across passes (root of the mean variance of sampled tokens) [nats].
        """
        began, every = time.perf_counter(), [row for rows in updates for row in rows]
        if self._mcla.passes == 1:
            logprobs = [scores for rows in updates for scores in self._score(rows)]
            record = {}
        else:
            logprobs, std = self._averaged(every, step)
            record = {"mcla_std": std}
            self._warn_where_inactive(std)
        filled = iter([_with(row, scores) for row, scores in zip(every, logprobs, strict=True)])
        record["recompute_seconds"] = time.perf_counter() - began
        return [[next(filled) for _ in rows] for rows in updates], record

    def _averaged(self, rows: Sequence[PackedBatch], step: int) -> tuple[np.ndarray, float]:
        """Means ``[rows, S]`` over passes, and the standard deviation across passes of sampled tokens."""
        padding, passes = padding_like(rows[0]), self._mcla.passes
        scores = np.zeros((passes, len(rows), len(padding.tokens)), np.float32)
        for number in range(passes):
            rng = np.random.default_rng([self._seed, step, 0, number])
            moved, places = repacked(rows, padding, rng)
            found = self._score(moved)
            for old, new in places:
                scores[number, old.row, old.start : old.end] = found[new.row, new.start : new.end]
        sampled = np.stack([row.targets.mask > 0 for row in rows])
        variance = scores.var(axis=0, ddof=1, dtype=np.float64)[sampled]
        return scores.mean(axis=0, dtype=np.float64), float(np.sqrt(variance.mean()))

    def _warn_where_inactive(self, std: float) -> None:
        if std <= ROUNDING and not self._said:
            self._said = True
            self._note(
                f"MCLA is inactive: the log-probabilities of {self._mcla.passes} passes differ by rounding alone "
                f"({std:.1e} nats), so their mean is that of one; config.rl.loss.mcla.passes=1 saves the others"
            )


def _with(row: PackedBatch, logprobs: np.ndarray) -> PackedBatch:
    """The row with log-probabilities ``[S]`` of its sampled tokens as log pi_old."""
    values = np.where(row.targets.mask > 0, logprobs, 0.0).astype(np.float32)
    return row.replace(targets=row.targets._replace(old_logprob=values))
