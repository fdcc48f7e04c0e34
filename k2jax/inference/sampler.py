"""Draws the next token of each row, and gives its log-probability."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp


class Choice(NamedTuple):
    """Sampling parameters of N rows; see ``k2jax.client.Sampling``.

    Attributes:
        temperature, top_p, min_p: float32 ``[N]``.
        top_k: int32 ``[N]``, 0 for all.
        seed: uint32 ``[N]``.
        index: int32 ``[N]``, tokens generated before. The random numbers are a function of (seed, index).
    """

    temperature: Array
    top_p: Array
    min_p: Array
    top_k: Array
    seed: Array
    index: Array


@functools.partial(jax.jit, static_argnames=("drawn", "truncated", "top"))
def sample(logits: Array, choice: Choice, drawn: bool, truncated: bool, top: int) -> tuple[Array, Array, Array, Array]:
    """Draws one token per row; a row's result depends on its own logits and parameters alone.

    Args:
        logits: float32 ``[N, V]``.
        choice: parameters.
        drawn: whether any row has a temperature above 0; False saves the random numbers of a whole vocabulary.
        truncated: whether any row asks for top_p, top_k or min_p; False saves sorting the vocabulary.
        top: number of alternatives to return.

    Returns:
        Token ids ``[N]``, their log-probabilities ``[N]`` under the untruncated softmax(logits / temperature), and
        the ``top`` most likely ids and log-probabilities ``[N, top]``.
    """
    greedy = choice.temperature <= 0.0
    ids = _argmax(logits)
    logprobs = jax.nn.log_softmax(logits / jnp.where(greedy, 1.0, choice.temperature)[:, None])
    allowed = _truncate(logprobs, choice) if drawn and truncated else logprobs

    def draw(row: Array, seed: Array, index: Array) -> Array:
        noise = jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), index), row.shape)
        return _argmax(row + noise)

    if drawn:
        ids = jnp.where(greedy, ids, jax.vmap(draw)(allowed, choice.seed, choice.index))
    chosen = jnp.take_along_axis(logprobs, ids[:, None], axis=1)[:, 0]
    best, best_ids = lax.top_k(logprobs, top)
    return ids, chosen, best_ids, best


def _argmax(x: Array) -> Array:
    """Index of the first largest element of the last axis, int32; 0 where one is NaN.

    XLA:CPU compiles this to vector instructions, and ``jnp.argmax`` to one comparison after the other.
    """
    size = x.shape[-1]
    is_most = ~(x < x.max(-1, keepdims=True))
    return jnp.where(is_most, jnp.arange(size, dtype=jnp.int32), size).min(-1)


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
