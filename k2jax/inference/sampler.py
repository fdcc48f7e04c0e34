"""Draws the next token of each row, and gives its log-probability."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.client import MAX_TOP_LOGPROBS
from k2jax.inference.adjustments import Adjustments, adjusted


class Choice(NamedTuple):
    """Sampling parameters of N rows; see ``k2jax.client.Sampling``.

    Attributes:
        temperature, top_p, min_p: float32 ``[N]``.
        top_k: int32 ``[N]``, 0 for all.
        seed: uint32 ``[N]``.
        index: int32 ``[N]``, tokens generated before. The random numbers are a function of (seed, index).
        alternatives: bool ``[N]``, whether the most likely tokens are asked for.
        adjustments: penalties and biases; None where no row has any.
    """

    temperature: Array
    top_p: Array
    min_p: Array
    top_k: Array
    seed: Array
    index: Array
    alternatives: Array
    adjustments: Adjustments | None = None


class Drawn(NamedTuple):
    """One token for each of N rows.

    Attributes:
        tokens: int32 ``[N]``.
        logprobs: float32 ``[N]``, of the tokens under the untruncated softmax(logits / temperature) of adjusted logits
            over what a mask allows.
        top_ids, top_logprobs: int32 and float32 ``[N, K]``, the most likely tokens, most likely first; 0 where no row
            asks for them.
        free_logprobs: float32 ``[N]``, of the tokens under softmax(logits / temperature) over the whole vocabulary;
            None without a mask and adjustments, where it is the same.
    """

    tokens: Array
    logprobs: Array
    top_ids: Array
    top_logprobs: Array
    free_logprobs: Array | None = None


@jax.jit
def sample(logits: Array, choice: Choice, mask: Array | None = None) -> Drawn:
    """Draws one token per row; a row's result depends on its own logits and parameters alone.

    What no row asks for is not computed: random numbers of a whole vocabulary, its order, the alternatives. This is
    decided when the program runs, so that there is one program for all.

    Args:
        logits: float32 ``[N, V]``.
        choice: parameters.
        mask: uint32 ``[N, ceil(V / 32)]``, a bit for each token that may be drawn, the first in the lowest bit; at
            least one of each row. None allows all.
    """
    greedy = choice.temperature <= 0.0
    temperature = jnp.where(greedy, 1.0, choice.temperature)[:, None]
    free, is_free = logits, mask is None and choice.adjustments is None
    if choice.adjustments is not None:
        logits = adjusted(logits, choice.adjustments)
    if mask is not None:
        logits = jnp.where(_unpacked(mask, logits.shape[-1]), logits, -jnp.inf)
    best = _argmax(logits)
    logprobs = jax.nn.log_softmax(logits / temperature)

    def draw(row: Array, seed: Array, index: Array) -> Array:
        noise = jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), index), row.shape)
        return _argmax(row + noise)

    def draw_all() -> Array:
        truncated = (choice.top_p < 1.0) | (choice.top_k > 0) | (choice.min_p > 0.0)
        allowed = lax.cond(truncated.any(), lambda: _truncate(logprobs, choice), lambda: logprobs)
        return jnp.where(greedy, best, jax.vmap(draw)(allowed, choice.seed, choice.index))

    def alternatives() -> tuple[Array, Array]:
        values, ids = lax.top_k(logprobs, alternative_count)
        return ids, values

    alternative_count = min(MAX_TOP_LOGPROBS, logits.shape[-1])
    ids = lax.cond(greedy.all(), lambda: best, draw_all)
    none = jnp.zeros_like(logits[:, :alternative_count])
    top = lax.cond(choice.alternatives.any(), alternatives, lambda: (none.astype(jnp.int32), none))
    chosen = lambda table: jnp.take_along_axis(table, ids[:, None], axis=1)[:, 0]  # noqa: E731
    return Drawn(ids, chosen(logprobs), *top, None if is_free else chosen(jax.nn.log_softmax(free / temperature)))


def _unpacked(mask: Array, vocab: int) -> Array:
    """The bits of words uint32 ``[N, W]`` as bool ``[N, vocab]``."""
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return bits.reshape(len(mask), -1)[:, :vocab] != 0


def _argmax(x: Array) -> Array:
    """Index of the first largest element of the last axis, int32; 0 where one is NaN.

    XLA:CPU compiles this to vector instructions, and ``jnp.argmax`` to one comparison after the other.
    """
    size = x.shape[-1]
    is_largest = ~(x < x.max(-1, keepdims=True))
    return jnp.where(is_largest, jnp.arange(size, dtype=jnp.int32), size).min(-1)


def _truncate(logprobs: Array, choice: Choice) -> Array:
    """Masks tokens with -inf by min_p, then top_k, then top_p of the rest; ties with the last kept token are kept."""
    vocab = logprobs.shape[-1]
    ordered = lax.sort(logprobs)[:, ::-1]
    keep_p = ordered >= ordered[:, :1] + jnp.log(choice.min_p)[:, None]
    top_k = jnp.where(choice.top_k > 0, jnp.minimum(choice.top_k, vocab), vocab)
    keep = keep_p & (jnp.arange(vocab) < top_k[:, None])
    probs = jnp.where(keep, jnp.exp(ordered), 0.0)
    before = jnp.cumsum(probs, axis=-1) - probs  # mass of the tokens that are more likely
    keep &= (before < choice.top_p[:, None] * probs.sum(-1, keepdims=True)) | (jnp.arange(vocab) == 0)
    last = jnp.where(keep, ordered, jnp.inf).min(-1, keepdims=True)
    return jnp.where(logprobs >= last, logprobs, -jnp.inf)
