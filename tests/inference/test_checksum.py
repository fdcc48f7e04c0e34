"""Checksums of weights: the same on every sharding, another one for every change."""

import zlib

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.inference.checksum import _ODD, bit_sum, digest, seed_of

DTYPES = [np.float32, jnp.bfloat16, np.int8]
SHAPE = (8, 4, 3)


def oracle(array, name="w", row=0):
    """The checksum in Python's integers, element by element."""
    word, total = (1 << 32) - 1, 0
    bits = array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.itemsize])
    for index in np.ndindex(array.shape):
        position = zlib.crc32(f"{name}/{row}".encode()) + sum(i * odd for i, odd in zip(index, _ODD, strict=False))
        x = int(bits[index]) ^ (position & word)
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & word
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & word
        total += x ^ (x >> 16)
    return total & word


def values(dtype, seed=0, shape=SHAPE):
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(dtype)


def checksum(array):
    return int(jax.jit(bit_sum)(array, seed_of("w")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_sum_of_mixed_bits_and_positions(dtype):
    assert checksum(values(dtype)) == oracle(values(dtype))


@given(st.data())
def test_another_value_or_another_place_gives_another_checksum(data):
    """One bit of one element flips, or two elements change places, signs of a pair included."""
    array = values(np.float32, data.draw(st.integers(0, 99)))
    before, flat = array.copy(), array.reshape(-1)
    i, j = (data.draw(st.integers(0, array.size - 1)) for _ in range(2))
    if data.draw(st.booleans()):
        flat[i], flat[j] = flat[j], flat[i]
    else:
        flat.view(np.uint32)[i] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert (checksum(array) == checksum(before)) == (array.tobytes() == before.tobytes())


def test_signs_that_change_places_give_another_checksum():
    """Two numbers whose bits differ in the highest alone."""
    array = np.ones((64, 64), np.float32)
    found = set()
    for place in range(64):
        array[place, place] = -1
        found.add(checksum(array))
        array[place, place] = 1
    assert len(found) == 64


def test_the_checksum_of_all_weights_depends_on_each_and_on_its_name_but_not_on_their_order():
    sums = {"embed": 1, ("moe/router", 0): 2, ("moe/router", 1): 3}
    assert digest(sums) == digest(dict(reversed(sums.items())))
    assert digest(sums) != digest(sums | {"embed": 2}) != digest(sums | {("moe/router", 0): 3, ("moe/router", 1): 2})
