"""Every public function takes arrays without a token or without a row, or refuses them in one line.

What is public follows from the exports of the packages: a new kernel has to say here what its empty inputs are.
"""

import functools
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels.expert_exchange import exchange_cost, expert_combine, expert_dispatch, expert_parallel
from pallas_kernels.grouped_matmul import grouped_matmul, grouped_matmul_transposed
from pallas_kernels.mla_attention import mla_attention
from pallas_kernels.mla_decode import Partial, attend, merge, mla_decode
from pallas_kernels.newton_schulz import coefficients, newton_schulz, newton_schulz_stacks
from pallas_kernels.routed_experts import expert_counts, kept_rows, routed_experts

F32, BF16 = jnp.float32, jnp.bfloat16
EMPTY = {"no tokens": (2, 0), "no rows": (0, 5), "neither": (0, 0)}
each_empty = pytest.mark.parametrize(("batch", "length"), EMPTY.values(), ids=EMPTY)
each_impl = pytest.mark.parametrize("impl", ["xla", "interpret"])
each_impl_and_dtype = pytest.mark.parametrize(("impl", "dtype"), [("xla", F32), ("interpret", BF16)])

TESTED = {
    "expert_exchange": {"expert_combine", "expert_dispatch", "expert_parallel", "exchange_cost"},
    "grouped_matmul": {"grouped_matmul", "grouped_matmul_transposed"},
    "mla_attention": {"mla_attention"},
    "mla_decode": {"attend", "merge", "mla_decode"},
    "newton_schulz": {"newton_schulz", "newton_schulz_stacks"},
    "routed_experts": {"expert_counts", "kept_rows", "routed_experts"},
}
WITHOUT_ARRAYS = {"mla_decode": {"whole_lanes"}, "newton_schulz": {"coefficients"}}


def test_every_public_function_is_here():
    found = {}
    for module in pkgutil.iter_modules(pallas_kernels.__path__):
        if module.ispkg:
            package = importlib.import_module(f"pallas_kernels.{module.name}")
            exported = {name: getattr(package, name) for name in package.__all__}
            found[module.name] = {name for name, value in exported.items() if inspect.isfunction(value)}
    assert found == {name: TESTED[name] | WITHOUT_ARRAYS.get(name, set()) for name in TESTED}


def drawn(*shapes, dtype=F32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def assert_result_and_zero_gradients(function, arrays, shape, dtype):
    """A result of zeros in its shape and dtype, and gradients that are exactly zero."""

    @jax.jit
    def run(arrays):
        result, pull = jax.vjp(function, *arrays)
        return result, pull(jnp.ones(shape, dtype))

    result, gradients = run(arrays)
    np.testing.assert_array_equal(result, jnp.zeros(shape, dtype), strict=True)
    for gradient, array in zip(gradients, arrays, strict=True):
        np.testing.assert_array_equal(gradient, np.zeros_like(array), strict=True)


@each_impl_and_dtype
@each_empty
@pytest.mark.parametrize("masked", [False, True])
def test_mla_attention(batch, length, masked, impl, dtype):
    heads, nope, rope, value = 4, 16, 8, 12
    widths = [(batch, heads, length, nope), (batch, heads, length, rope), (batch, heads, length, nope)]
    arrays = drawn(*widths, (batch, length, rope), (batch, heads, length, value), dtype=dtype)
    exit = jnp.zeros((batch, length), jnp.int32) if masked else None
    attention = functools.partial(mla_attention, exit=exit, scale=0.2, impl=impl)
    assert_result_and_zero_gradients(lambda *a: attention(*a)[0], arrays, (batch, heads, length, value), dtype)
    stats = jax.jit(attention)(*arrays)[1]
    np.testing.assert_array_equal(stats.max_logit, np.full(heads, -np.inf, np.float32), strict=True)
    assert (stats.lse.shape, stats.lse.dtype) == ((batch, heads, length), F32)


@each_impl_and_dtype
@pytest.mark.parametrize(
    ("sequences", "queries", "pages"), [(0, 4, 2), (2, 0, 2), (2, 4, 0), (0, 0, 0)],
    ids=["no sequences", "no queries", "no pages", "nothing"],
)  # fmt: skip
def test_mla_decode(sequences, queries, pages, impl, dtype):
    width, latent = 128, 96
    q, cache = drawn((sequences, queries, width), (2, 3, 8, width), dtype=dtype)
    table, lengths = jnp.zeros((sequences, pages), jnp.int32), jnp.zeros(sequences, jnp.int32)
    run = jax.jit(functools.partial(mla_decode, latent=latent, scale=0.1, impl=impl))
    out, lse = run(q, cache, 1, table, lengths)
    np.testing.assert_array_equal(out, np.zeros((sequences, queries, latent), np.float32), strict=True)
    np.testing.assert_array_equal(lse, np.full((sequences, queries), -np.inf, np.float32), strict=True)


@pytest.mark.parametrize(("sequences", "queries", "keys"), [(0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 0, 0)])
def test_attend_and_merge(sequences, queries, keys):
    q, k = drawn((sequences, queries, 16), (sequences, keys, 16))
    part = attend(q, k, jnp.ones((sequences, queries, keys), bool), 12, 0.3)
    np.testing.assert_array_equal(part.out, np.zeros((sequences, queries, 12), np.float32), strict=True)
    np.testing.assert_array_equal(part.lse, np.full((sequences, queries), -np.inf, np.float32), strict=True)
    np.testing.assert_array_equal(merge(part, Partial(*part)), part.out, strict=True)


@each_impl_and_dtype
def test_routed_experts(impl, dtype):
    x, w13, w2 = drawn((0, 256), (4, 256, 2, 128), (4, 128, 256), dtype=dtype)
    ids, [gates] = jnp.zeros((0, 2), jnp.int32), drawn((0, 2))
    for store_fp8 in ((), ("expert_input", "expert_gate_up")):

        def experts(x, w13, w2, gates, store_fp8=store_fp8):
            return routed_experts(x, w13, w2, ids, gates, impl=impl, store_fp8=store_fp8)

        assert_result_and_zero_gradients(experts, [x, w13, w2, gates], (0, 256), dtype)


@each_impl
@pytest.mark.parametrize("tokens", [0, 3])
def test_routed_experts_of_no_choices(impl, tokens):
    x, w13, w2, gates = drawn((tokens, 256), (4, 256, 2, 128), (4, 128, 256), (tokens, 0))
    experts = lambda *a: routed_experts(*a[:3], jnp.zeros((tokens, 0), jnp.int32), a[3], impl=impl)  # noqa: E731
    assert_result_and_zero_gradients(experts, [x, w13, w2, gates], (tokens, 256), F32)


@each_impl
def test_counts_of_routed_experts(impl):
    counts = expert_counts(jnp.zeros((0, 2), jnp.int32), 4)
    np.testing.assert_array_equal(counts, np.zeros(4, np.int32), strict=True)
    rows, plan_bytes = kept_rows(0, 2, (4, 128, 256), F32, impl=impl)
    assert (rows, plan_bytes) == (0, 0)


@each_impl_and_dtype
@pytest.mark.parametrize(("rows", "groups"), [(0, 3), (0, 0), (4, 0)], ids=["no rows", "nothing", "no groups"])
def test_grouped_matmul(rows, groups, impl, dtype):
    sizes = jnp.zeros(groups, jnp.int32)
    lhs, rhs, dout = drawn((rows, 128), (groups, 128, 256), (rows, 256), dtype=dtype)
    multiply = functools.partial(grouped_matmul, impl=impl)
    transposed = functools.partial(grouped_matmul_transposed, impl=impl)
    assert_result_and_zero_gradients(lambda *a: multiply(*a, sizes), [lhs, rhs], (rows, 256), dtype)
    assert_result_and_zero_gradients(lambda *a: transposed(*a, sizes), [lhs, dout], (groups, 128, 256), dtype)


@each_impl
@pytest.mark.parametrize("shape", [(0, 8, 16), (2, 0, 16), (2, 8, 0), (0, 0), (3, 0, 4, 8)], ids=str)
def test_newton_schulz(shape, impl):
    steps = coefficients("muon", 2)
    [x] = drawn(shape, dtype=BF16)
    for result in (newton_schulz(x, steps, impl=impl), newton_schulz_stacks([x, x], steps, impl=impl)[1]):
        np.testing.assert_array_equal(result, np.zeros(shape, np.float32), strict=True)
    assert newton_schulz_stacks([], steps, impl=impl) == []


@pytest.mark.parametrize(("backend", "impl"), [("dense", "xla"), ("a2a", "xla"), ("dma", "interpret")])
@pytest.mark.parametrize("chunks", [1, 2])
def test_expert_exchange(backend, impl, chunks):
    x, w13, w2, gates = drawn((0, 256), (4, 256, 2, 128), (4, 128, 256), (0, 2))
    ids = jnp.zeros((0, 2), jnp.int32)
    rank = PartitionSpec("expert")
    mesh = jax.make_mesh((1,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=rank, out_specs=rank, check_vma=backend != "dma")
    exchange = {"axis_name": "expert", "backend": backend, "impl": impl}

    def there_and_back(x, gates):
        received, route = expert_dispatch(x, ids, gates, experts=4, **exchange)
        return expert_combine(received.x, route)

    def parallel(x, w13, w2, gates):
        y, dropped = expert_parallel(x, w13, w2, ids, gates, chunks=chunks, **exchange)
        return y + dropped

    if chunks == 1:
        assert_result_and_zero_gradients(shard(there_and_back), [x, gates], (0, 256), F32)
    assert_result_and_zero_gradients(shard(parallel), [x, w13, w2, gates], (0, 256), F32)


def test_an_exchange_of_no_choices_is_refused():
    [x, gates] = drawn((3, 8), (3, 0))
    with pytest.raises(ValueError, match="a choice for each token; got K 0"):
        expert_dispatch(x, jnp.zeros((3, 0), jnp.int32), gates, experts=4, axis_name="expert")


def test_an_exchange_of_no_rows_costs_nothing():
    assert exchange_cost(0, 8, 4).bytes_accessed == 0
