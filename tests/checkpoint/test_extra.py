"""The extra item of a checkpoint: any tree of JSON values and arrays comes back."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
import numpy as np
import pytest

from k2jax.checkpoint import Checkpoints
from k2jax.checkpoint.extra import decode, encode

DTYPES = st.sampled_from([np.int32, np.float32, np.float64, np.bool_, np.uint8])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text(max_size=5),
    DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=3))),
)  # fmt: skip
KEYS = st.text(max_size=4).filter(lambda key: key != "$array")
TREES = st.recursive(LEAVES, lambda t: st.lists(t, max_size=3) | st.dictionaries(KEYS, t, max_size=3), max_leaves=8)


def equal(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@given(TREES)
def test_a_tree_comes_back_as_it_was(tree):
    assert equal(tree, decode(encode(tree)))


@pytest.mark.parametrize("value", [object(), {1: 2}, {"$array": "0"}, np.array([None]), np.float32(1), {"a": {2, 3}}])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="an extra checkpoint item"):
        encode(value)


def test_a_checkpoint_keeps_it_beside_the_state(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = {"w": np.ones((2, 3), np.float32)}
    rollouts = {"unfinished": [{"tokens": np.arange(5), "turn": 2}], "phase": 1}
    checkpoints.save(1, state, state, {})
    checkpoints.save(2, state, state, {}, extra=rollouts)
    checkpoints.wait()
    assert checkpoints.extra(1) is None
    assert equal(checkpoints.extra(2), rollouts)
    checkpoints.close()
