"""FLOPs and bytes from a jaxpr, against numbers worked out by hand."""

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import pytest

from k2jax.aot.cost.jaxpr_flops import DynamicShares, TracedCost, loop_costs, traced_cost


def counted(function, *shapes):
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return traced_cost(jax.jit(function).trace(*structs).jaxpr.jaxpr)


def kernel(estimate):
    return pl.pallas_call(
        lambda x, y: None, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32), cost_estimate=estimate, name="nothing"
    )


ESTIMATE = pl.CostEstimate(flops=7, bytes_accessed=11, transcendentals=0)


def test_a_batched_product():
    got = counted(lambda x, y: jnp.einsum("bik,bkj->bij", x, y), (5, 2, 3), (5, 3, 4))
    assert got == TracedCost(2 * 5 * 2 * 3 * 4, 4 * 5 * (2 * 3 + 3 * 4 + 2 * 4), 0)


def test_a_loop_counts_as_often_as_it_runs():
    once = counted(lambda x: x @ x, (4, 4))
    assert counted(lambda x: lax.scan(lambda c, _: (c @ c, None), x, None, length=6)[0], (4, 4)) == once.times(6)


def test_a_kernel_counts_what_it_declares_wherever_it_is():
    call = kernel(ESTIMATE)
    assert counted(call, (8, 128)) == TracedCost(7, 11, 1)
    looped = lambda x: lax.fori_loop(0, 3, lambda i, c: jax.checkpoint(call)(c), x)  # noqa: E731
    assert counted(looped, (8, 128)) == TracedCost(21, 33, 3)


def test_a_kernel_that_declares_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing declares no cost"):
        counted(kernel(None), (8, 128))


def test_of_the_branches_the_dearest_counts():
    def choose(x):
        return lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x @ x, x)

    assert counted(choose, (4, 4)).flops == 2 * 2 * 4**3


def test_a_branch_of_an_outermost_loop_counts_as_often_as_it_is_taken():
    def loop(x):
        return lax.scan(lambda c, n: (lax.cond(n > 0, lambda c: c @ c, lambda c: c, c), None), x, jnp.arange(6))[0]

    struct = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    jaxpr = jax.jit(loop).trace(struct).jaxpr.jaxpr
    product = 2 * 4**3
    assert traced_cost(jaxpr).flops == 6 * product
    assert traced_cost(jaxpr, shares=DynamicShares({6: 0.5})).flops == 3 * product
    assert traced_cost(jaxpr, shares=DynamicShares({5: 0.5})).flops == 6 * product


def test_kernels_of_experts_count_the_rows_in_use():
    def call(name):
        out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        return pl.pallas_call(lambda x, y: None, out_shape=out, cost_estimate=ESTIMATE, name=name)

    struct = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    for name, flops in (("routed_experts_up", 3.5), ("grouped_matmul", 3.5), ("mla_attention_forward", 7)):
        jaxpr = jax.jit(call(name)).trace(struct).jaxpr.jaxpr
        assert traced_cost(jaxpr, shares=DynamicShares(rows_in_use=0.5)).flops == flops


def test_ticks_are_runs_of_outermost_loops_and_the_optimizer_is_apart():
    def step(x):
        x = lax.scan(lambda c, _: (lax.fori_loop(0, 2, lambda i, c: c @ c, c), None), x, None, length=6)[0]
        with jax.named_scope("optimizer"):
            return lax.fori_loop(0, 5, lambda i, c: c @ c, x @ x)

    jaxpr = jax.jit(step).trace(jax.ShapeDtypeStruct((4, 4), jnp.float32)).jaxpr.jaxpr
    product = 2 * 4**3
    found = [(one.times, one.cost.flops, one.scope == "optimizer") for one in loop_costs(jaxpr) if one.cost.flops]
    assert found == [(6, 2 * product, False), (5, product, True), (1, product, True)]


def test_what_is_outside_of_a_shard_map_is_shared_out():
    mesh = jax.sharding.AbstractMesh((4,), ("d",))
    inside = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=P("d"), out_specs=P("d"))

    def step(x, y):
        return inside(x), y @ y

    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 4), (4, 4))]
    with jax.sharding.use_abstract_mesh(mesh):
        jaxpr = jax.jit(step).trace(*structs).jaxpr.jaxpr
    assert traced_cost(jaxpr, 4).flops == 2 * 2 * 4 * 2 + 2 * 4**3 / 4
