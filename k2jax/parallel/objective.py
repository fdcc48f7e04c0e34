"""The training objective of one micro-batch on one device: a loss's terms over their denominators, and its metrics."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.losses import Loss, Rows
from k2jax.model import token_scores
from k2jax.model.collectives import token_indices

MAXIMUM = "_max"
"""The end of the name of a metric that is a maximum: not negative, and combined by the maximum instead of the sum."""


class LossShares(NamedTuple):
    """This device's shares of a batch's loss; those of micro-batches and devices add up, maxima apart.

    Attributes:
        terms: by name, ``[]`` float32, sum over denominator.
        metrics: by ``term/name``, ``[]`` or ``[N]`` float32, sum over the term's denominator.
        maxima: by ``term/name``, ``[]`` float32, not negative, over tokens, turns or branches.
    """

    terms: dict[str, Array]
    metrics: dict[str, Array]
    maxima: dict[str, Array]

    @property
    def total(self) -> Array:
        """The objective ``[]``, without the balance loss."""
        return functools.reduce(operator.add, self.terms.values())


class Objective(NamedTuple):
    """A loss with what a global batch knows before its first micro-batch.

    Attributes:
        loss: the loss.
        denominators: of its terms, ``[]`` float32 each.
        balance: coefficient of the balance loss, over the rows of the batch.
    """

    loss: Loss
    denominators: dict[str, Array]
    balance: float

    def shares(self, hidden_BSD: Array, head_VD: Array, batch: PackedBatch, **shards: Any) -> LossShares:
        """The loss of some rows.

        Args:
            hidden_BSD: hidden states after the final norm.
            head_VD: output projection, or this device's rows of it.
            batch: a micro-batch ``[B, S]``.
            **shards: ``axis_name`` and ``vocab`` of ``token_scores`` where the head is sharded.
        """
        temperature = self.loss.temperature(batch.targets)
        options = {"entropy": self.loss.entropy, **shards}
        scores = token_scores(hidden_BSD, batch.parent, batch.tokens, head_VD, temperature, **options)
        rows = Rows(batch.exit, jnp.broadcast_to(token_indices(batch.exit), batch.exit.shape[1:]))
        terms, metrics, maxima = {}, {}, {}
        for term, (total, reported) in self.loss(scores, batch.targets, rows).items():
            if total is not None:
                terms[term] = total / self.denominators[term]
            for name, value in reported.items():
                if name.endswith(MAXIMUM):
                    maxima[f"{term}/{name}"] = lax.stop_gradient(value)
                else:
                    metrics[f"{term}/{name}"] = value / self.denominators[term]
        return LossShares(terms, metrics, maxima)


def combine_shares(a: LossShares, b: LossShares) -> LossShares:
    """The shares of two micro-batches together."""
    terms, metrics = (jax.tree.map(jnp.add, x, y) for x, y in zip(a[:2], b[:2], strict=True))
    return LossShares(terms, metrics, jax.tree.map(jnp.maximum, a.maxima, b.maxima))


def fold_shares(shares: LossShares) -> LossShares:
    """The shares of all micro-batches along the leading axis together."""
    terms, metrics = jax.tree.map(lambda share: share.sum(0), shares[:2])
    return LossShares(terms, metrics, jax.tree.map(lambda share: share.max(0), shares.maxima))


def reduce_shares(shares: LossShares, axes: tuple[str, ...]) -> LossShares:
    """The shares of all devices along mesh axes together, inside a ``shard_map``."""
    terms, metrics = lax.psum(shares[:2], axes)
    return LossShares(terms, metrics, lax.pmax(shares.maxima, axes) if shares.maxima else {})


def undivided(objective: Objective) -> Objective:
    """The same loss with denominators of 1: its shares are sums, as validation adds them up over batches."""
    return objective._replace(denominators=jax.tree.map(jnp.ones_like, objective.denominators))
