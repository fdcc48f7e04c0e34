"""Attention to a paged latent cache, plain and as the TPU kernel in interpret mode, against float64 NumPy."""

import functools

import jax
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.mla_decode import merge, mla_decode, mosaic, xla

LAYERS, PAGE, LATENT, WIDTH, SCALE = 2, 8, 16, 24, 0.3


def paged(lengths, columns, queries, seed, dtype=np.float32):
    """Queries, a cache whose unused tokens are NaN, and page tables in random order with NaN pages beyond the end."""
    rng = np.random.default_rng(seed)
    count = len(lengths)
    cache = np.full((LAYERS, 1 + count * columns, PAGE, WIDTH), np.nan, np.float32)
    pages = 1 + rng.permutation(count * columns).reshape(count, columns).astype(np.int32)
    for row, length in enumerate(lengths):
        for token in range(length):
            cache[1, pages[row, token // PAGE], token % PAGE] = rng.standard_normal(WIDTH)
    q = rng.standard_normal((count, queries, WIDTH)).astype(np.float32)
    return jnp.asarray(q, dtype), jnp.asarray(cache, dtype), jnp.asarray(pages), jnp.asarray(lengths, jnp.int32)


def reference(q, cache, pages, lengths):
    q, cache = np.asarray(q, np.float64), np.asarray(cache, np.float64)
    out, lse = np.zeros((*q.shape[:2], LATENT)), np.full(q.shape[:2], -np.inf)
    for n, length in enumerate(np.asarray(lengths)):
        if length:
            keys = cache[1, np.asarray(pages)[n]].reshape(-1, WIDTH)[:length]
            logits = SCALE * q[n] @ keys.T
            weights = np.exp(logits - logits.max(1, keepdims=True))
            out[n] = weights / weights.sum(1, keepdims=True) @ keys[:, :LATENT]
            lse[n] = np.log(weights.sum(1)) + logits.max(1)
    return out, lse


def check(arrays, impl, tolerance=1e-5):
    run = jax.jit(functools.partial(mla_decode, latent=LATENT, scale=SCALE, impl=impl))
    got = run(arrays[0], arrays[1], 1, *arrays[2:])
    out, lse = reference(*arrays)
    np.testing.assert_allclose(got.out, out, atol=tolerance)
    np.testing.assert_allclose(got.lse, lse, atol=tolerance)


@pytest.mark.parametrize("impl", ["xla", "interpret"])
@pytest.mark.parametrize(
    ("lengths", "queries", "block"), [([40, 0, 17], 5, 24), ([0, 1], 1, 8), ([7, 8, 9], 18, 512), ([24, 25], 5, 8)]
)
def test_agrees_with_float64(impl, lengths, queries, block, monkeypatch):
    monkeypatch.setattr(mosaic, "BLOCK_TOKENS", block)
    check(paged(lengths, 5, queries, 0), impl)


def test_rows_come_in_several_blocks():
    """Queries of a prompt's chunk: heads times tokens, more than one block of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mosaic, "LARGEST_ROWS", 16)
        patch.setattr(mosaic, "BLOCK_TOKENS", 16)
        check(paged([33, 0, 12], 5, 37, 1), "interpret")


def test_bfloat16():
    arrays = paged([30, 11], 4, 4, 2, jnp.bfloat16)
    for impl in ("xla", "interpret"):
        check(arrays, impl, tolerance=0.03)


def test_no_races_and_nothing_read_before_it_arrived():
    """Uninitialized memory holds NaN; every copy is checked against the reads that follow it."""
    arrays = paged([40, 3, 25], 5, 4, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mosaic, "BLOCK_TOKENS", 16)
        interpret = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
        cache = xla.PagedCache(arrays[1], 1, *arrays[2:])
        got = mosaic.mla_decode(arrays[0], cache, LATENT, SCALE, interpret=interpret)
    assert not interpret_pallas_call.races.races_found
    np.testing.assert_allclose(got.out, reference(*arrays)[0], atol=1e-5)


attend = jax.jit(functools.partial(xla.attend, latent=LATENT, scale=SCALE))


def test_merging_two_parts_is_attending_to_both():
    rng = np.random.default_rng(4)
    q, keys = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((2, 3, WIDTH), (2, 10, WIDTH)))
    everything = np.ones((2, 1, 10), bool)
    parts = [everything & (np.arange(10) < 4), everything & (np.arange(10) >= 4)]
    for hidden in (0, 1):  # a sequence of which one part sees no key
        parts[hidden] = parts[hidden] & (np.arange(2) != hidden)[:, None, None]
    seen = parts[0] | parts[1]
    merged = jax.jit(merge)(*(attend(q, keys, jnp.asarray(part)) for part in parts))
    np.testing.assert_allclose(merged, attend(q, keys, jnp.asarray(seen)).out, atol=1e-6)


def test_nothing_seen_on_either_side_gives_zero():
    q, keys = jnp.ones((1, 2, WIDTH)), jnp.ones((1, 3, WIDTH))
    nothing = attend(q, keys, jnp.zeros((1, 1, 3), bool))
    assert not np.asarray(jax.jit(merge)(nothing, nothing)).any()


@pytest.mark.parametrize("wrong", ["width", "dtype", "lengths", "latent"])
def test_wrong_arguments_are_refused(wrong):
    q, cache, pages, lengths = paged([3], 1, 2, 0)
    latent = WIDTH + 1 if wrong == "latent" else LATENT
    cache = {"width": cache[..., 1:], "dtype": cache.astype(jnp.bfloat16)}.get(wrong, cache)
    lengths = lengths[:0] if wrong == "lengths" else lengths
    with pytest.raises(ValueError, match=r"expected q|do not fit"):
        mla_decode(q, cache, 0, pages, lengths, latent=latent, scale=1.0)


def test_a_page_table_beyond_scalar_memory_is_refused():
    q, cache, pages, lengths = paged([3], 1, 2, 0)
    with pytest.raises(ValueError, match="a page table at most 200,000"):
        mla_decode(q, cache, 0, jnp.tile(pages, (1, 200_001)), lengths, latent=LATENT, scale=1.0, impl="interpret")
    with pytest.raises(ValueError, match="a multiple of 8 tokens"):
        mla_decode(q, cache[:, :, :7], 0, pages, lengths, latent=LATENT, scale=1.0, impl="interpret")


def test_cost_is_bound_by_bandwidth_at_k2():
    cost = mosaic.cost(32, 64, 576, 512, 32768, 2)
    assert cost.flops == 2 * 32 * 64 * 32768 * 1088
    assert 110 < cost.flops / cost.bytes_accessed < 121
