"""Negative log-likelihood of the next token: pretraining and supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from jax import Array

from k2jax.batch import TokenScores
from k2jax.losses.base import Loss, Metrics
from k2jax.losses.rows import Rows


class NLL(Loss):
    """Mean negative log-likelihood per weighted target [nats]; targets are ``{"weights": float32 [B, S]}``."""

    def denominators(self, targets: Any) -> dict[str, Array]:
        """The weight of the whole batch."""
        return {"nll": targets["weights"].sum()}

    def __call__(self, scores: TokenScores, targets: Any, rows: Rows) -> dict[str, tuple[Array, Metrics]]:
        """The weighted sum of negative log-likelihoods."""
        return {"nll": (-rows.sum(targets["weights"] * scores.logprob), {})}
