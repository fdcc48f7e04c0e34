"""Values in messages of errors."""

import time

from hypothesis import example, given, settings, strategies
import pytest

from k2jax.errors import abbreviate

JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text("ab \n\u6708\U0001f600"),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text("ab"), inner),
)


@settings(max_examples=30)
@given(JSON, strategies.integers(10, 80))
@example({"b": None, "aa": None, "": None, "ba": False}, 10)
def test_an_abbreviated_value_is_the_beginning_of_the_whole(value, length):
    whole = ascii(value)
    expected = whole if len(whole) <= length else f"{whole[: length - 3]}..."
    assert abbreviate(value, length) == expected


@pytest.mark.parametrize(
    "value", ["\x7f" * 10**7, ["a"] * 10**6, [["\x7f" * 10**6] * 100], {str(i): [1] * 1000 for i in range(10_000)}]
)
def test_a_long_value_is_not_written_as_a_whole(value):
    begun = time.process_time()
    assert len(abbreviate(value)) == 80
    assert time.process_time() - begun < 0.01
