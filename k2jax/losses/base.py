"""What a loss is: named terms, each a sum over tokens, turns or branches with a denominator of its own.

Every executor of a training step (one device, the pipelines, tensor and context parallelism) calls the same loss, once
for each micro-batch and device. The objective is the sum over terms of ``sum / denominator``. Denominators are known
before the first micro-batch, so gradient accumulation and sharding change nothing but rounding.
"""

from __future__ import annotations

import abc
from typing import Any

from jax import Array

from k2jax.batch import TokenScores
from k2jax.losses.rows import Rows

Metrics = dict[str, Array]
"""Named sums ``[]`` or ``[N]`` float32 over what the term's denominator counts; they are reported divided by it. A name
that ends in ``_max`` is a maximum ``[]`` of numbers that are not negative; micro-batches and devices are combined by
their maximum."""


class Loss(abc.ABC):
    """A training objective over the scores of tokens.

    Attributes:
        entropy: whether the scores hold entropies, which the head then computes beside the log-probabilities.
    """

    entropy: bool = False

    @abc.abstractmethod
    def denominators(self, targets: Any) -> dict[str, Array]:
        """The denominator ``[]`` float32 of every term.

        Args:
            targets: of the global batch, over all micro-batches and processes; leaves have leading axes ``[M, B]``.
        """

    @abc.abstractmethod
    def __call__(self, scores: TokenScores, targets: Any, rows: Rows) -> dict[str, tuple[Array | None, Metrics]]:
        """The sum ``[]`` of every term over some rows, made with ``rows.sum``, and sums to report beside it.

        Sums are linear: those of two micro-batches, or of two devices, add up to those of both. A term whose sum is
        None is no part of the objective: it only reports what has its denominator.

        Args:
            scores: of the rows' tokens ``[B, S]``; on a mesh, of this device's rows and tokens.
            targets: the batch's, with leaves ``[B, S]`` or ``[B, N]``; zero on padding, where every sum must be 0.
            rows: sums over tokens, turns and branches that are exact on any mesh.
        """

    def temperature(self, targets: Any) -> Array | float:
        """What divides the logits: a number, or ``[B, S]`` per token as a target."""
        return 1.0
