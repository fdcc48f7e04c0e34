"""Rotary positions of no tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.model.rope import rotary_table, rotate_halves, rotate_neighbours
from tests.inference.tiny import GQA, MLA


@pytest.mark.parametrize("shape", [(2, 0), (0, 5), (0, 0)], ids=str)
@pytest.mark.parametrize("model", [MLA, GQA], ids=["mla", "gqa"])
def test_no_tokens_are_rotated_to_no_tokens(model, shape):
    dim = model.attention_widths.rotary_dim
    cos, sin = rotary_table(jnp.zeros(shape, jnp.int32), model)
    assert cos.shape == sin.shape == (*shape, dim // 2) and cos.dtype == jnp.float32
    x = jnp.zeros((*shape, dim), jnp.bfloat16)
    for rotate in (rotate_neighbours, rotate_halves):
        np.testing.assert_array_equal(rotate(x, cos, sin), x, strict=True)
