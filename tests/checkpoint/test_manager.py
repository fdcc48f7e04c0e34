"""Checkpoints keep what they say, in the formats they say, and are refused in one line where they cannot be read."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.checkpoint import FORMAT, Checkpoints, run_config
from k2jax.errors import UserError


def state(number: int):
    params = {"w": jnp.full((3, 2), number, jnp.float32), "n": {"b": jnp.arange(4.0) + number}}
    return params, {"count": jnp.int32(number), "moment": jnp.full((3, 2), number, jnp.bfloat16)}


def shapes(tree):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert jax.tree.map(lambda x: x.dtype, a) == jax.tree.map(lambda x: x.dtype, b)


@pytest.fixture
def saved(tmp_path):
    """A folder in which steps 1 to 4 were saved and two were to be kept."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 5):
        checkpoints.save(step, *state(step), {"tokens": 10 * step})
    checkpoints.close()
    return tmp_path


def test_the_newest_are_kept_and_come_back_as_they_were(saved):
    checkpoints = Checkpoints(saved)
    assert checkpoints.steps() == [3, 4]
    for step in (3, 4):
        meta = checkpoints.meta(step)
        assert (meta["tokens"], meta["format"], meta["step"]) == (10 * step, FORMAT, step)
        params, optimizer = checkpoints.restore(step, *shapes(state(0)))
        same((params, optimizer), state(step))
    checkpoints.close()


def test_a_temporary_folder_is_no_step(saved):
    (saved / "checkpoints" / "9.orbax-checkpoint-tmp").mkdir()
    (saved / "checkpoints" / "9.orbax-checkpoint-tmp" / "params").mkdir()
    assert Checkpoints(saved).steps() == [3, 4]


def test_another_format_is_refused_by_number(saved):
    [path] = (saved / "checkpoints" / "4" / "meta").glob("metadata")
    path.write_text(json.dumps({"format": FORMAT + 1, "step": 4}))
    with pytest.raises(UserError, match=rf"format {FORMAT + 1}, this version reads {FORMAT}"):
        Checkpoints(saved).meta(4)


def test_another_shape_is_refused_and_the_older_step_named(saved):
    other = shapes({"w": jnp.zeros((5, 2)), "n": {"b": jnp.zeros(4)}})
    with pytest.raises(UserError, match=r"checkpoints/4 can be read and is whole, but does not .*\(5, 2\)"):
        Checkpoints(saved).restore(4, other, shapes(state(0)[1]))


@pytest.mark.parametrize(("text", "words"), [(None, "has no config.json"), ("{", "is damaged")])
def test_a_folder_without_a_readable_configuration_is_one_line(tmp_path, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=words):
        run_config(tmp_path)
