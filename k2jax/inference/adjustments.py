"""Penalties and biases of logits: what a request has seen so far, on the host, and its logits, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.client import Sampling


class Adjustments(NamedTuple):
    """What changes the logits of N rows, as a list of E tokens of each; see ``k2jax.client.Sampling``.

    Attributes:
        ids: int32 ``[N, E]``, those that a row has a bias for or has seen; the size of the vocabulary where there is
            none. One may stand there several times.
        seen: int32 ``[N, E]``, how often prompt and completion have them.
        generated: int32 ``[N, E]``, how often the completion has them.
        bias: float32 ``[N, E]``.
        presence, frequency, repetition: float32 ``[N]``, the penalties.
    """

    ids: Array
    seen: Array
    generated: Array
    bias: Array
    presence: Array
    frequency: Array
    repetition: Array


def adjusted(logits: Array, adjustments: Adjustments) -> Array:
    """Logits float32 ``[N, V]`` with biases, then the penalty of repetitions, then the two of counts."""

    def row(logits_V: Array, own: Adjustments) -> Array:
        def total(values_E: Array) -> Array:
            return jnp.zeros(len(logits_V), values_E.dtype).at[own.ids].add(values_E, mode="drop")

        logits_V += total(own.bias)
        repeated_V = jnp.where(logits_V > 0, logits_V / own.repetition, logits_V * own.repetition)
        logits_V = jnp.where(total(own.seen) > 0, repeated_V, logits_V)
        generated_V = total(own.generated)
        return logits_V - own.frequency * generated_V - own.presence * (generated_V > 0)

    return jax.vmap(row)(logits, adjustments)


def with_drawn(adjustments: Adjustments, tokens: Array, column: Array | int) -> Adjustments:
    """Adjustments in which each row has seen one more token, written to a spare column.

    Args:
        adjustments: of N rows.
        tokens: int32 ``[N]``.
        column: of those that are empty.
    """
    return adjustments._replace(
        ids=adjustments.ids.at[:, column].set(tokens),
        seen=adjustments.seen.at[:, column].set(1),
        generated=adjustments.generated.at[:, column].set(1),
    )


class AdjustmentState:
    """The tokens of one request that penalties and biases are about.

    Args:
        sampling: of the request.
        prompt: its token ids, which only the penalty of repetitions is about.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]):
        self._sampling, self._rows = sampling, dict[int, int]()
        self._ids = self._seen = self._generated = np.zeros(0, np.int32)
        self._bias = np.zeros(0, np.float32)
        for token, bias in sampling.logit_bias:
            row = self._row(token)
            self._bias[row] += bias
        if sampling.repetition_penalty != 1.0:
            for token in prompt:
                row = self._row(token)
                self._seen[row] += 1

    def __len__(self) -> int:
        """Number of different tokens."""
        return len(self._rows)

    def take(self, token: int) -> None:
        """Adds a generated token."""
        row = self._row(token)
        self._seen[row] += 1
        self._generated[row] += 1

    def fill(self, adjustments: Adjustments, row: int) -> None:
        """Writes one row of arrays that have room for all of its tokens."""
        count, asked = len(self), self._sampling
        for name in ("ids", "seen", "generated", "bias"):
            getattr(adjustments, name)[row, :count] = getattr(self, f"_{name}")[:count]
        adjustments.presence[row] = asked.presence_penalty
        adjustments.frequency[row] = asked.frequency_penalty
        adjustments.repetition[row] = asked.repetition_penalty

    def _row(self, token: int) -> int:
        """The place of a token in the arrays, which may be other ones afterwards."""
        row = self._rows.setdefault(token, len(self._rows))
        if row == len(self._ids):
            for name in ("ids", "seen", "generated", "bias"):
                values = getattr(self, f"_{name}")
                setattr(self, f"_{name}", np.concatenate([values, np.zeros(max(16, row), values.dtype)]))
        self._ids[row] = token
        return row


def empty_adjustments(rows: int, columns: int, vocab: int) -> Adjustments:
    """Arrays on the host that change no logits."""
    return Adjustments(
        ids=np.full((rows, columns), vocab, np.int32),
        seen=np.zeros((rows, columns), np.int32),
        generated=np.zeros((rows, columns), np.int32),
        bias=np.zeros((rows, columns), np.float32),
        presence=np.zeros(rows, np.float32),
        frequency=np.zeros(rows, np.float32),
        repetition=np.ones(rows, np.float32),
    )
