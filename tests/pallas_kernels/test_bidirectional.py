"""Attention inside documents in both directions, against torch's own attention of each document alone in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pallas_kernels.mla_attention import AttentionInputs, blocks, mosaic, xla
from tests.pallas_kernels.test_mla_attention import NAMES, SCALE, assert_close, random_inputs

ROWS = ([37, 5, 60, 1, 30], [129])  # lengths of documents; what is left of a row is padding
BACKENDS = {
    "unrolled": lambda inputs: xla.mla_attention(inputs, SCALE, xla.Tiling(64, unrolled=True)),
    "looped": lambda inputs: xla.mla_attention(inputs, SCALE, xla.Tiling(64, unrolled=False)),
    "mosaic": lambda inputs: mosaic.mla_attention(inputs, SCALE, block=128, interpret=True),
}


def intervals(rows, length):
    """Start and exit ``[B, S]`` of documents; padding is seen by nobody."""
    start, exit = np.tile(np.arange(length), (len(rows), 1)), np.tile(np.arange(length), (len(rows), 1))
    for row, documents in enumerate(rows):
        ends = np.cumsum(documents)
        for end, size in zip(ends, documents, strict=True):
            start[row, end - size : end], exit[row, end - size : end] = end - size, end
    return jnp.asarray(start, jnp.int32), jnp.asarray(exit, jnp.int32)


def reference(inputs, dout, rows):
    """Output and gradients; documents do not know of each other."""
    tensors = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in inputs]
    q_nope, q_rope, k_nope, k_rope, v = tensors
    q = torch.cat([q_nope, q_rope], -1)
    k = torch.cat([k_nope, k_rope[:, None].expand_as(q_rope)], -1)
    out = torch.zeros_like(v)
    for row, documents in enumerate(rows):
        for end, size in zip(np.cumsum(documents), documents, strict=True):
            part = (row, slice(None), slice(end - size, end))
            attended = torch.nn.functional.scaled_dot_product_attention(q[part], k[part], v[part], scale=SCALE)
            out[part] = attended
    grads = torch.autograd.grad(out, tensors, torch.tensor(np.asarray(dout, np.float64)))
    return out.detach().numpy(), [x.numpy() for x in grads]


@functools.partial(jax.jit, static_argnums=3)
def run(inputs, mask, dout, backend):
    start, exit = mask
    attend = lambda *arrays: BACKENDS[backend](AttentionInputs(*arrays, exit, start))[0]  # noqa: E731
    out, vjp = jax.vjp(attend, *inputs)
    return out, vjp(dout)


@pytest.mark.parametrize(
    "backend", ["looped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("unrolled", "mosaic"))]
)
def test_documents_are_attended_in_both_directions_and_apart(backend):
    length = 140
    inputs, dout = random_inputs(length, heads=1)
    out, grads = run(inputs, intervals(ROWS, length), dout, backend)
    expected, expected_grads = reference(inputs, dout, ROWS)
    assert_close(out, expected, "out")
    for name, actual, wanted in zip(NAMES, grads, expected_grads, strict=True):
        assert_close(actual, wanted, name)


def test_the_mosaic_schedule_holds_the_blocks_of_the_same_document_and_no_others():
    start, exit = intervals([[128, 256, 384]], 768)
    schedule = blocks.schedule_pairs(exit, 128, "query", start)
    words = np.asarray(schedule.pairs)[: int(schedule.steps)]
    pairs = [blocks.unpack(word) for word in words]
    assert [(int(p.query), int(p.key)) for p in pairs] == [
        (q, k) for document in ([0], [1, 2], [3, 4, 5]) for q in document for k in document
    ]
    assert all(bool(pair.full) for pair in pairs)
