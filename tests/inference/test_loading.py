"""Engines that read a checkpoint as they are filled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import k2jax
from k2jax.inference.loading import load_engine
from k2jax.inference.mesh import make_engine_mesh
from k2jax.model import unstack_layers
from tests.serve.folder import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama"))


def assert_equal(ours, expected):
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(other, np.float32))


@pytest.mark.parametrize(
    "data", [None, pytest.param(2, marks=pytest.mark.devices(2))], ids=["one device", "two devices"]
)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_an_engine_reads_the_weights_that_from_pretrained_gives(folder, dtype, data):
    _, params = k2jax.from_pretrained(folder, dtype=dtype)
    mesh = make_engine_mesh(data) if data else None
    engine = load_engine(folder, dtype, mesh, slots=2, max_length=32)
    assert_equal(engine.weights.params, unstack_layers(params))
    assert engine.version == 0
