"""Zeros of which the system clears only the pages that are used."""

import mmap
import resource
import sys

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.inference import lazy_zeros as module
from k2jax.inference.lazy_zeros import lazy_zeros
from k2jax.inference.mesh import default_sharding

PLACES = st.lists(st.integers(0, 5 * mmap.PAGESIZE), min_size=2, max_size=2).map(sorted)


@pytest.mark.parametrize("taken", [True, False], ids=["pages are taken back", "pages are refused"])
@given(place=PLACES)
def test_zeros_fill_their_place_and_nothing_else(taken, place):
    release = module._release if taken else lambda pages: False
    start, stop = place
    expected = np.full(5 * mmap.PAGESIZE, 7, np.uint8)
    memory = expected.copy()
    expected[start:stop] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_release", release)
        module._clear(None, memory[start:stop])
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("shape", [(3,), (5, 1000, 77)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_array_of_them_is_as_others_that_programs_return(shape, dtype):
    array, expected = (make(shape, dtype) for make in (placed, jnp.zeros))
    assert (array.shape, array.dtype, array.sharding) == (shape, dtype, default_sharding())
    assert array.committed
    assert jnp.array_equal(array, expected)


def placed(shape, dtype):
    return lazy_zeros(shape, dtype, default_sharding())


@pytest.mark.skipif(sys.platform != "linux", reason="madvise of other systems gives no zeros")
def test_pages_are_cleared_when_they_are_written_and_a_program_writes_in_place():
    rows, width = 1 << 10, 1 << 16  # 256 MiB, a page in 1 << 10 floats
    write = jax.jit(lambda array, row: array.at[row].set(1.0), donate_argnums=0)
    jax.block_until_ready(write(placed((rows, width), jnp.float32), 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array = placed((rows, width), jnp.float32)
    place = array.unsafe_buffer_pointer()
    written = jax.block_until_ready(write(array, 5))
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert written.unsafe_buffer_pointer() == place
    assert faults < rows * width * 4 // 4096 // 10
    assert np.asarray(written[4:7]).sum(1).tolist() == [0, width, 0]
