"""Attention inside documents in both directions, against torch in float64."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pallas_kernels.mla_attention import AttentionInputs, blocks, mla_attention, mosaic, xla
from tests.pallas_kernels.attention_oracle import NAMES, SCALE, assert_close, random_inputs

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


def reference(inputs, dout, visible):
    """Output, gradients, lse and largest logit of each head under a mask ``[B, S, S]`` of queries by keys, in torch."""
    tensors = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in inputs]
    q_nope, q_rope, k_nope, k_rope, v = tensors
    logits = SCALE * (q_nope @ k_nope.mT + q_rope @ k_rope[:, None].mT)
    seen = torch.tensor(visible)[:, None]
    largest = logits.detach().amax(-1, keepdim=True)
    weights = torch.exp(logits - largest) * seen
    total = weights.sum(-1, keepdim=True)
    out = weights @ v / torch.where(total == 0, 1.0, total)
    grads = torch.autograd.grad(out, tensors, torch.tensor(np.asarray(dout, np.float64)))
    lse = (torch.log(total) + largest)[..., 0]
    peak = logits.masked_fill(~seen, -torch.inf).amax((0, 2, 3))
    return [x.detach().numpy() for x in (out, lse, peak)], [x.numpy() for x in grads]


def check(inputs, dout, mask, visible, backend):
    expected, expected_grads = reference(inputs, dout, visible)
    out, grads, stats = run(inputs, mask, dout, backend)
    actual = out, stats.lse, stats.max_logit[None]
    for name, mine, theirs in zip(("out", "lse", "max_logit"), actual, expected, strict=True):
        assert_close(mine, theirs if mine.ndim > 2 else theirs[None], name)
    for name, mine, theirs in zip(NAMES, grads, expected_grads, strict=True):
        if mine.size:
            assert_close(mine, theirs, name)


def same_document(rows, length):
    """Whether two tokens are of one document, ``[B, S, S]``; padding is of none."""
    number = np.full((len(rows), length), -1)
    for row, documents in enumerate(rows):
        number[row, : sum(documents)] = np.repeat(np.arange(len(documents)), documents)
    return (number[:, :, None] == number[:, None]) & (number[:, None] >= 0)


@functools.partial(jax.jit, static_argnums=3)
def run(inputs, mask, dout, backend):
    start, exit = mask
    attend = lambda *arrays: BACKENDS[backend](AttentionInputs(*arrays, exit, start))  # noqa: E731
    out, vjp, stats = jax.vjp(attend, *inputs, has_aux=True)
    return out, vjp(dout), stats


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["unrolled", "mosaic"])
def test_documents_are_attended_in_both_directions_and_apart(backend):
    inputs, dout = random_inputs(140, heads=1)
    check(inputs, dout, intervals(ROWS, 140), same_document(ROWS, 140), backend)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    length=st.sampled_from([3, 64, 200]),  # part of a block, one, and rows that begin inside a block
    sizes=st.lists(st.lists(st.sampled_from([1, 2, 31, 63, 64, 65, 128, 199]), max_size=6), min_size=2, max_size=2),
    rope=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_of_any_sizes_match_the_dense_reference_with_their_statistics(length, sizes, rope, seed):
    rows = [[n for n, end in zip(row, np.cumsum(row), strict=True) if end <= length] for row in sizes]
    inputs, dout = random_inputs(length, seed, batch=len(rows), heads=2)
    if not rope:
        inputs[1], inputs[3] = inputs[1][..., :0], inputs[3][..., :0]
    check(inputs, dout, intervals(rows, length), same_document(rows, length), "looped")


@pytest.mark.parametrize("ends", [True, False], ids=["with exits", "without exits"])
def test_a_query_sees_the_keys_whose_interval_holds_it_wherever_they_lie(ends):
    """Queries that see keys far away, and other keys than see them: every interval of the row is its own."""
    length, rng = 300, np.random.default_rng(0)
    start, exit = np.sort(rng.integers(0, length + 1, (2, 1, length)), 0)
    exit[:, 70:140] = start[:, 70:140]  # a block of keys that nobody sees
    inputs, dout = random_inputs(length, batch=1, heads=2)
    query = np.arange(length)[:, None]
    visible = (start[:, None] <= query) & (query < (exit[:, None] if ends else length))
    check(
        inputs, dout, (jnp.asarray(start, jnp.int32), jnp.asarray(exit, jnp.int32) if ends else None), visible, "looped"
    )


def test_the_loop_visits_no_tile_between_documents():
    """NaN in one of two documents, each of whole blocks, does not reach the other, since no tile joins them."""
    rows = [[128, 128]]
    inputs, dout = random_inputs(256, batch=1, heads=1)
    inputs[4][:, :, :128] = np.nan
    assert np.isfinite(run(inputs, intervals(rows, 256), dout, "looped")[0][:, :, 128:]).all()
    inputs, dout = random_inputs(256, batch=1, heads=1)
    dout[:, :, :128] = np.nan
    assert np.isfinite(run(inputs, intervals(rows, 256), dout, "looped")[1][4][:, :, 128:]).all()


def test_the_mosaic_schedule_holds_the_blocks_of_the_same_document_and_no_others():
    start, exit = intervals([[128, 256, 384]], 768)
    schedule = blocks.schedule_pairs(exit, 128, "query", start)
    words = np.asarray(schedule.pairs)[: int(schedule.steps)]
    pairs = [blocks.unpack(word) for word in words]
    assert [(int(p.query), int(p.key)) for p in pairs] == [
        (q, k) for document in ([0], [1, 2], [3, 4, 5]) for q in document for k in document
    ]
    assert all(bool(pair.full) for pair in pairs)


@pytest.mark.parametrize(("devices", "block"), [(1, xla.LOOPED_BLOCK), (2, xla.SHARED_CORES_BLOCK)])
def test_devices_that_share_a_cpu_have_smaller_blocks_in_both_directions(monkeypatch, devices, block):
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    length = xla.UNROLL_UP_TO + 1
    assert xla.default_tiling(length, both_directions=True) == xla.Tiling(block, unrolled=False)
    assert xla.default_tiling(length) == xla.Tiling(xla.LOOPED_BLOCK, unrolled=False)
    inputs, tilings = random_inputs(length)[0], []
    monkeypatch.setattr(xla, "mla_attention", lambda inputs, scale, tiling: tilings.append(tiling))
    start, exit = intervals([[length]] * len(inputs[0]), length)
    mla_attention(*inputs, start=start, exit=exit, scale=SCALE)
    mla_attention(*inputs, exit=exit, scale=SCALE)
    assert [tiling.block for tiling in tilings] == [block, xla.LOOPED_BLOCK]
