"""Log-probabilities of tokens without ever holding ``[B, S, V]`` logits.

4k tokens of 163,840 float32 logits are 2.7 GB a sequence. Here logits exist for one chunk of tokens and one chunk of
the vocabulary at a time, forward and backward: the forward pass keeps a running log-sum-exp, the backward pass
recomputes each chunk and turns it into its share of the two gradients. Gradients are written as a custom VJP so that
nothing of size tokens x vocabulary is saved.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.model.spread import whole_rows
from pallas_kernels.varying import vary_together, vary_tree

CHUNK_ELEMENTS = 1 << 23  # logits alive at a time; 32 MB of float32
CHUNK_TOKENS = 4096
NOTHING = -1e30  # the logit of what is not there; finite, since a device may have nothing else in a chunk


@jax.named_scope("head")
def token_logprobs(
    hidden: Array,
    parent: Array,
    tokens: Array,
    head: Array,
    temperature: float | Array = 1.0,
    *,
    axis_name: str | None = None,
    vocab: int | None = None,
) -> Array:
    """log p(token t | hidden state at parent[t]) for every token.

    Args:
        hidden: ``[B, S, D]`` after the final norm.
        parent: ``[B, S]`` int32, index in the (whole) row of the predicting position; -1 where there is none.
        tokens: ``[B, S]`` int32 targets.
        head: ``[V, D]`` output projection.
        temperature: divides the logits; a scalar or ``[B, S]``, belonging to the target. It gets no gradient.
        axis_name: inside a ``shard_map``, the mesh axis over whose devices the rows of ``head`` are spread, in order;
            each device's share of the gradients is what its own rows contribute.
        vocab: rows of the whole head that count; those beyond, at the end, are padding. None is all.

    Returns:
        ``[B, S]`` float32; 0 where parent is -1, and no gradient from there.
    """
    batch, sequence, width = hidden.shape
    predicted = jnp.take_along_axis(whole_rows(hidden), jnp.maximum(parent, 0)[..., None], axis=1).reshape(-1, width)
    inverse = jnp.broadcast_to(1.0 / jnp.asarray(temperature, jnp.float32), tokens.shape).reshape(-1)
    rows = _Rows(axis_name, head.shape[0], vocab or head.shape[0] * (lax.axis_size(axis_name) if axis_name else 1))
    predicted, head = vary_together(predicted, head, axes=(axis_name,) if axis_name else ())
    logprobs = _in_token_chunks(predicted, tokens.reshape(-1), lax.stop_gradient(inverse), head, rows)
    return jnp.where(parent < 0, 0.0, logprobs.reshape(batch, sequence))


class _Rows(NamedTuple):
    """Which rows of the whole head a device has: ``here``, its slice in the order of ``axis_name``, of ``vocab``."""

    axis_name: str | None
    here: int
    vocab: int

    @property
    def first(self) -> Array | int:
        return lax.axis_index(self.axis_name) * self.here if self.axis_name else 0

    def sum(self, x: Array) -> Array:
        return lax.psum(x, self.axis_name) if self.axis_name else x

    def max(self, x: Array) -> Array:
        return lax.pmax(x, self.axis_name) if self.axis_name else x


def _in_token_chunks(hidden: Array, tokens: Array, inverse: Array, head: Array, rows: _Rows) -> Array:
    total = hidden.shape[0]
    if total <= CHUNK_TOKENS:
        return _logprobs(hidden, tokens, inverse, head, rows)
    chunks = -(-total // CHUNK_TOKENS)
    padded = [
        jnp.pad(a, [(0, chunks * CHUNK_TOKENS - total)] + [(0, 0)] * (a.ndim - 1)) for a in (hidden, tokens, inverse)
    ]
    split = [a.reshape(chunks, CHUNK_TOKENS, *a.shape[1:]) for a in padded]
    # The chunks' gradients of the head add up in the dtype it has here: float32, not that of the products.
    wide = head.astype(jnp.float32)
    return lax.map(lambda c: _logprobs(*c, wide.astype(head.dtype), rows), tuple(split)).reshape(-1)[:total]


def _vocab_chunks(head: Array, tokens: int) -> tuple[Array, Array]:
    """The head as ``[chunks, V', D]`` and each chunk's first vocabulary index; padded rows are masked by index."""
    vocab, width = head.shape
    wanted = min(vocab, max(1, -(-vocab * tokens // CHUNK_ELEMENTS)))
    even = next((n for n in range(wanted, 2 * wanted) if vocab % n == 0), None)
    size = -(-vocab // (even or wanted))
    chunks = -(-vocab // size)
    padded = head if chunks * size == vocab else jnp.pad(head, ((0, chunks * size - vocab), (0, 0)))
    return padded.reshape(chunks, size, width), jnp.arange(chunks, dtype=jnp.int32) * size


def _chunk_logits(hidden: Array, inverse: Array, weight: Array, start: Array, rows: _Rows) -> Array:
    """Float32 logits ``[T, V']`` over temperature; next to nothing past the end of the vocabulary."""
    logits = jnp.einsum("td,vd->tv", hidden, weight, preferred_element_type=jnp.float32) * inverse[:, None]
    if rows.axis_name or rows.vocab % weight.shape[0]:
        within = start + np.arange(weight.shape[0])
        logits = jnp.where((within < rows.here) & (rows.first + within < rows.vocab), logits, NOTHING)
    return logits


def _target_logits(hidden: Array, tokens: Array, inverse: Array, head: Array, rows: _Rows) -> Array:
    local = tokens - rows.first
    here = (local >= 0) & (local < rows.here)
    found = head[jnp.clip(local, 0, rows.here - 1)] if rows.axis_name else head[tokens]
    logits = jnp.einsum("td,td->t", hidden, found, preferred_element_type=jnp.float32) * inverse
    return rows.sum(jnp.where(here, logits, 0.0)) if rows.axis_name else logits


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _logprobs(hidden: Array, tokens: Array, inverse: Array, head: Array, rows: _Rows) -> Array:
    return _forward(hidden, tokens, inverse, head, rows)[0]


def _forward(hidden: Array, tokens: Array, inverse: Array, head: Array, rows: _Rows):
    weights, starts = _vocab_chunks(head, hidden.shape[0])
    chunk = functools.partial(_chunk_logits, hidden, inverse, rows=rows)

    def add(carry, piece):
        top, total = carry
        logits = chunk(*piece)
        new_top = jnp.maximum(top, logits.max(-1))
        return (new_top, total * jnp.exp(top - new_top) + jnp.exp(logits - new_top[:, None]).sum(-1)), None

    start = vary_tree((jnp.full(tokens.shape, NOTHING), jnp.zeros(tokens.shape)), like=(hidden, tokens))
    (top, total), _ = lax.scan(add, start, (weights, starts))
    highest = rows.max(top)
    lse = highest + jnp.log(rows.sum(total * jnp.exp(top - highest)))
    return _target_logits(hidden, tokens, inverse, head, rows) - lse, (hidden, tokens, inverse, head, lse)


def _backward(rows: _Rows, saved, cotangent: Array):
    hidden, tokens, inverse, head, lse = saved
    weights, starts = _vocab_chunks(head, hidden.shape[0])
    scaled = cotangent * inverse
    # XLA:CPU multiplies at half speed when it contracts the first axis of its left operand, as d_logits^T hidden would;
    # the barriers keep it from folding the transposes back in.
    hidden_t = lax.optimization_barrier(hidden.T)

    def add(d_hidden, piece):
        weight, start = piece
        logits = _chunk_logits(hidden, inverse, weight, start, rows)
        is_target = tokens[:, None] == rows.first + start + jnp.arange(weight.shape[0])
        d_logits = (scaled[:, None] * (is_target - jnp.exp(logits - lse[:, None]))).astype(hidden.dtype)
        d_hidden = d_hidden + jnp.einsum("tv,vd->td", d_logits, weight, preferred_element_type=jnp.float32)
        d_weight = jnp.einsum("dt,tv->dv", hidden_t, d_logits, preferred_element_type=jnp.float32)
        return d_hidden, lax.optimization_barrier(d_weight).T

    zeros = vary_tree(jnp.zeros(hidden.shape, jnp.float32), like=(hidden, tokens))
    d_hidden, d_head = lax.scan(add, zeros, (weights, starts))
    d_head = d_head.reshape(-1, head.shape[1])[: head.shape[0]]
    return d_hidden.astype(hidden.dtype), None, None, d_head.astype(head.dtype)


_logprobs.defvjp(_forward, _backward)
