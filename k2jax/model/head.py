"""Log-probabilities of tokens and entropies without ever holding ``[B, S, V]`` logits.

4k tokens of 163,840 float32 logits are 2.7 GB a sequence. Here logits exist for one chunk of tokens and one chunk of
the vocabulary at a time, forward and backward: the forward pass keeps a running log-sum-exp, the backward pass
recomputes each chunk and turns it into its share of the two gradients. Gradients are written as a custom VJP so that
nothing of size tokens x vocabulary is saved.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.batch import TokenScores
from k2jax.model.collectives import all_gather_sequence
from pallas_kernels.vma import vary_together, vary_tree

CHUNK_ELEMENTS = 1 << 23  # logits alive at a time; 32 MB of float32
CHUNK_TOKENS = 4096
NOTHING = -1e30  # the logit of a padded row; finite, since a device may have only such rows in a chunk


def token_logprobs(
    hidden: Array,
    parent: Array,
    tokens: Array,
    head: Array,
    temperature: float | Array = 1.0,
    **shards: Any,
) -> Array:
    """Computes the log-probabilities of ``token_scores`` alone, ``[B, S]`` float32; the arguments are the same."""
    return token_scores(hidden, parent, tokens, head, temperature, **shards).logprob


@jax.named_scope("head")
def token_scores(
    hidden: Array,
    parent: Array,
    tokens: Array,
    head: Array,
    temperature: float | Array = 1.0,
    *,
    entropy: bool = False,
    axis_name: str | None = None,
    vocab: int | None = None,
) -> TokenScores:
    """Computes each token's log-probability given the hidden state at its parent, and the entropy of that distribution.

    Args:
        hidden: ``[B, S, D]`` after the final norm.
        parent: ``[B, S]`` int32, index in the (whole) row of the predicting position; -1 where there is none.
        tokens: ``[B, S]`` int32 targets.
        head: ``[V, D]`` output projection.
        temperature: divides the logits; a scalar or ``[B, S]``, belonging to the target. It gets no gradient.
        entropy: whether to compute entropies too.
        axis_name: inside a ``shard_map``, the mesh axis over whose devices the rows of ``head`` are sharded, in order;
            each device's share of the gradients is what its own rows contribute.
        vocab: rows of the whole head that count; those beyond, at the end, are padding. None is all.

    Returns:
        Float32 ``[B, S]`` each; 0 where parent is -1, and no gradient from there. Entropy is None unless asked for.
    """
    batch, sequence, width = hidden.shape
    row_BSD = all_gather_sequence(hidden)
    hidden_TD = jnp.take_along_axis(row_BSD, jnp.maximum(parent, 0)[..., None], axis=1).reshape(-1, width)
    inverse_T = jnp.broadcast_to(1.0 / jnp.asarray(temperature, jnp.float32), tokens.shape).reshape(-1)
    rows = _HeadRows(axis_name, head.shape[0], vocab or head.shape[0] * (lax.axis_size(axis_name) if axis_name else 1))
    hidden_TD, head_VD = vary_together(hidden_TD, head, axes=(axis_name,) if axis_name else ())
    scores = _in_token_chunks(hidden_TD, tokens.reshape(-1), lax.stop_gradient(inverse_T), head_VD, (rows, entropy))
    return jax.tree.map(lambda score: jnp.where(parent < 0, 0.0, score.reshape(batch, sequence)), scores)


class _HeadRows(NamedTuple):
    """The rows of the whole head that a device has.

    Attributes:
        axis_name: the mesh axis over which the head is sharded, in order; None where it is not.
        local: rows of this device.
        vocab: rows of the whole head without padding.
    """

    axis_name: str | None
    local: int
    vocab: int

    @property
    def first(self) -> Array | int:
        return lax.axis_index(self.axis_name) * self.local if self.axis_name else 0

    def sum(self, x: Array) -> Array:
        return lax.psum(x, self.axis_name) if self.axis_name else x

    def max(self, x: Array) -> Array:
        return lax.pmax(x, self.axis_name) if self.axis_name else x


_Static = tuple[_HeadRows, bool]  # static under tracing: the head's rows, and whether entropies are computed


def _in_token_chunks(
    hidden_TD: Array, tokens_T: Array, inverse_T: Array, head_VD: Array, static: _Static
) -> TokenScores:
    total = hidden_TD.shape[0]
    if total <= CHUNK_TOKENS:
        return _scores(hidden_TD, tokens_T, inverse_T, head_VD, static)
    chunks = -(-total // CHUNK_TOKENS)
    padded = [
        jnp.pad(a, [(0, chunks * CHUNK_TOKENS - total)] + [(0, 0)] * (a.ndim - 1))
        for a in (hidden_TD, tokens_T, inverse_T)
    ]
    split = [a.reshape(chunks, CHUNK_TOKENS, *a.shape[1:]) for a in padded]
    # The head's gradients of all chunks add up in the dtype of this copy: float32 instead of that of the products.
    wide_VD = head_VD.astype(jnp.float32)
    scores = lax.map(lambda chunk: _scores(*chunk, wide_VD.astype(head_VD.dtype), static), tuple(split))
    return jax.tree.map(lambda score: score.reshape(-1)[:total], scores)


def _vocab_chunks(head_VD: Array, tokens: int) -> tuple[Array, Array]:
    """Splits the head into ``[chunks, V', D]``; also returns each chunk's first row. Padding is masked by index."""
    vocab, width = head_VD.shape
    target = min(vocab, max(1, -(-vocab * tokens // CHUNK_ELEMENTS)))
    even = next((n for n in range(target, 2 * target) if vocab % n == 0), None)
    size = -(-vocab // (even or target))
    chunks = -(-vocab // size)
    padded_VD = head_VD if chunks * size == vocab else jnp.pad(head_VD, ((0, chunks * size - vocab), (0, 0)))
    return padded_VD.reshape(chunks, size, width), jnp.arange(chunks, dtype=jnp.int32) * size


def _chunk_logits(hidden_TD: Array, inverse_T: Array, weight_VD: Array, start: Array, rows: _HeadRows) -> Array:
    """Computes float32 logits ``[T, V']`` over temperature; padded rows of the head get ``NOTHING``."""
    logits_TV = jnp.einsum("td,vd->tv", hidden_TD, weight_VD, preferred_element_type=jnp.float32) * inverse_T[:, None]
    if rows.axis_name or rows.vocab % weight_VD.shape[0]:
        row_V = start + np.arange(weight_VD.shape[0])
        logits_TV = jnp.where((row_V < rows.local) & (rows.first + row_V < rows.vocab), logits_TV, NOTHING)
    return logits_TV


def _target_logits(hidden_TD: Array, tokens_T: Array, inverse_T: Array, head_VD: Array, rows: _HeadRows) -> Array:
    local_T = tokens_T - rows.first
    own_T = (local_T >= 0) & (local_T < rows.local)
    weight_TD = head_VD[jnp.clip(local_T, 0, rows.local - 1)] if rows.axis_name else head_VD[tokens_T]
    logits_T = jnp.einsum("td,td->t", hidden_TD, weight_TD, preferred_element_type=jnp.float32) * inverse_T
    return rows.sum(jnp.where(own_T, logits_T, 0.0)) if rows.axis_name else logits_T


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _scores(hidden_TD: Array, tokens_T: Array, inverse_T: Array, head_VD: Array, static: _Static) -> TokenScores:
    return _forward(hidden_TD, tokens_T, inverse_T, head_VD, static)[0]


def _forward(hidden_TD: Array, tokens_T: Array, inverse_T: Array, head_VD: Array, static: _Static):
    rows, entropy = static
    weights, starts = _vocab_chunks(head_VD, hidden_TD.shape[0])
    chunk = functools.partial(_chunk_logits, hidden_TD, inverse_T, rows=rows)

    def add(carry, piece):
        top_T, total_T, *moment = carry
        logits_TV = chunk(*piece)
        new_top_T = jnp.maximum(top_T, logits_TV.max(-1))
        shrink_T, shifted_TV = jnp.exp(top_T - new_top_T), logits_TV - new_top_T[:, None]
        added = [
            shrink_T * (part + (top_T - new_top_T) * total_T) + (jnp.exp(shifted_TV) * shifted_TV).sum(-1)
            for part in moment
        ]
        return (new_top_T, total_T * shrink_T + jnp.exp(shifted_TV).sum(-1), *added), None

    empty = (jnp.full(tokens_T.shape, NOTHING), *[jnp.zeros(tokens_T.shape)] * (2 if entropy else 1))
    (top_T, total_T, *moment), _ = lax.scan(add, vary_tree(empty, like=(hidden_TD, tokens_T)), (weights, starts))
    highest_T = rows.max(top_T)
    shrink_T = jnp.exp(top_T - highest_T)
    normalizer_T = rows.sum(total_T * shrink_T)
    lse_T = highest_T + jnp.log(normalizer_T)
    # The mean of (logit - highest) under the distribution; the entropy is log-sum-exp less the mean logit.
    means = [rows.sum(shrink_T * (part + (top_T - highest_T) * total_T)) / normalizer_T for part in moment]
    entropies = [jnp.log(normalizer_T) - mean_T for mean_T in means]
    scores = TokenScores(_target_logits(hidden_TD, tokens_T, inverse_T, head_VD, rows) - lse_T, *entropies)
    return scores, (hidden_TD, tokens_T, inverse_T, head_VD, lse_T, scores.entropy)


def _backward(static: _Static, saved, cotangents: TokenScores):
    hidden_TD, tokens_T, inverse_T, head_VD, lse_T, entropy_T = saved
    rows = static[0]
    weights, starts = _vocab_chunks(head_VD, hidden_TD.shape[0])
    d_logprob_T = cotangents.logprob * inverse_T
    d_entropy_T = None if entropy_T is None else cotangents.entropy * inverse_T
    # XLA:CPU multiplies at half speed when it contracts the first axis of its left operand, as d_logits^T hidden would;
    # the barriers keep it from folding the transposes back in.
    hidden_DT = lax.optimization_barrier(hidden_TD.T)

    def add(d_hidden_TD, piece):
        weight_VD, start = piece
        logits_TV = _chunk_logits(hidden_TD, inverse_T, weight_VD, start, rows)
        is_target_TV = tokens_T[:, None] == rows.first + start + jnp.arange(weight_VD.shape[0])
        logprobs_TV = logits_TV - lse_T[:, None]
        d_logits_TV = d_logprob_T[:, None] * (is_target_TV - jnp.exp(logprobs_TV))
        if entropy_T is not None:  # dH / dz = -p (log p + H)
            d_logits_TV -= d_entropy_T[:, None] * jnp.exp(logprobs_TV) * (logprobs_TV + entropy_T[:, None])
        d_logits_TV = d_logits_TV.astype(hidden_TD.dtype)
        d_hidden_TD += jnp.einsum("tv,vd->td", d_logits_TV, weight_VD, preferred_element_type=jnp.float32)
        d_weight_DV = jnp.einsum("dt,tv->dv", hidden_DT, d_logits_TV, preferred_element_type=jnp.float32)
        return d_hidden_TD, lax.optimization_barrier(d_weight_DV).T

    zeros_TD = vary_tree(jnp.zeros(hidden_TD.shape, jnp.float32), like=(hidden_TD, tokens_T))
    d_hidden_TD, d_head = lax.scan(add, zeros_TD, (weights, starts))
    d_head_VD = d_head.reshape(-1, head_VD.shape[1])[: head_VD.shape[0]]
    return d_hidden_TD.astype(hidden_TD.dtype), None, None, d_head_VD.astype(head_VD.dtype)


_scores.defvjp(_forward, _backward)
