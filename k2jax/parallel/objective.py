"""The training objective of one micro-batch on one device: a loss's terms over their denominators, and its metrics."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.losses import Loss, Rows
from k2jax.model import token_scores
from k2jax.model.collectives import token_indices


class LossShares(NamedTuple):
    """This device's shares of a batch's loss; those of micro-batches and devices add up.

    Attributes:
        terms: by name, ``[]`` float32, sum over denominator.
        metrics: by ``term/name``, ``[]`` float32, sum over the term's denominator.
    """

    terms: dict[str, Array]
    metrics: dict[str, Array]

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
        terms, metrics = {}, {}
        for term, (total, sums) in self.loss(scores, batch.targets, rows).items():
            if total is not None:
                terms[term] = total / self.denominators[term]
            metrics |= {f"{term}/{name}": value / self.denominators[term] for name, value in sums.items()}
        return LossShares(terms, metrics)


def undivided(objective: Objective) -> Objective:
    """The same loss with denominators of 1: its shares are sums, as validation adds them up over batches."""
    return objective._replace(denominators=jax.tree.map(jnp.ones_like, objective.denominators))
