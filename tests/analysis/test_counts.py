"""FLOPs and bytes from a jaxpr, against numbers worked out by hand."""

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import pytest

from k2jax.analysis.counts import Counts, count


def counted(function, *shapes):
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return count(jax.jit(function).trace(*structs).jaxpr.jaxpr)


def kernel(estimate):
    return pl.pallas_call(
        lambda x, y: None, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32), cost_estimate=estimate, name="nothing"
    )


ESTIMATE = pl.CostEstimate(flops=7, bytes_accessed=11, transcendentals=0)


def test_a_batched_product():
    got = counted(lambda x, y: jnp.einsum("bik,bkj->bij", x, y), (5, 2, 3), (5, 3, 4))
    assert got == Counts(2 * 5 * 2 * 3 * 4, 4 * 5 * (2 * 3 + 3 * 4 + 2 * 4), 0)


def test_a_loop_counts_as_often_as_it_runs():
    once = counted(lambda x: x @ x, (4, 4))
    assert counted(lambda x: lax.scan(lambda c, _: (c @ c, None), x, None, length=6)[0], (4, 4)) == once.times(6)


def test_a_kernel_counts_what_it_declares_wherever_it_is():
    call = kernel(ESTIMATE)
    assert counted(call, (8, 128)) == Counts(7, 11, 1)
    looped = lambda x: lax.fori_loop(0, 3, lambda i, c: jax.checkpoint(call)(c), x)  # noqa: E731
    assert counted(looped, (8, 128)) == Counts(21, 33, 3)


def test_a_kernel_that_declares_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing declares no cost"):
        counted(kernel(None), (8, 128))


def test_of_the_branches_the_dearest_counts():
    def choose(x):
        return lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x @ x, x)

    assert counted(choose, (4, 4)).flops == 2 * 2 * 4**3
