"""What a harness may hand back as a reward, whatever it is."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.agents.gateway.listener import ListenAddress
from k2jax.agents.harness.handed_back import RewardRange
from k2jax.errors import UserError

NAMES = ["reward", "parts", "info", "x"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["reward", "parts", "info", "x"]), inner)
    ),
    max_leaves=8,
)


@given(VALUES, st.floats(-10, 0), st.floats(1, 10))
def test_whatever_is_handed_back_is_a_reward_in_range_or_refused(value, lowest, highest):
    try:
        reward = RewardRange(lowest, highest).read(value)
    except (ValueError, TypeError):
        return
    number = value["reward"] if isinstance(value, dict) else value
    assert type(number) in (int, float) and reward["value"] == number and lowest <= number <= highest


@given(st.floats(0, 1), st.dictionaries(st.text(max_size=9), st.floats(-5, 5), max_size=4))
def test_a_good_reward_is_kept_as_it_is(value, parts):
    reward = RewardRange(0.0, 1.0).read({"reward": value, "parts": parts, "info": {"log": "a"}})
    assert reward == {"value": value, "parts": parts, "info": {"log": "a"}}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0, 0)),
        ("10.0.0.5:8900-8915", ("10.0.0.5", 8900, 8915)),
        ("[::1]:80", ("::1", 80, 80)),
        ("host:0-9", None),
        (":80", None),
        ("host:-1", None),
        ("host:80-", None),
        ("host:٣", None),
        ("host", None),
    ],
)
def test_addresses(text, read):
    if read is None:
        with pytest.raises(UserError, match="is no address"):
            ListenAddress.read(text)
    else:
        assert ListenAddress.read(text) == read
