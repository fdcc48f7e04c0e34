"""Plans of many rows at once are those of every row by itself."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data.planned_rows import drawn_before, drawn_rows
from k2jax.mixture_plan import MixturePlan

SOURCE = st.tuples(st.floats(0.01, 100), st.none() | st.integers(1, 60))


@settings(max_examples=30)
@given(st.lists(SOURCE, min_size=1, max_size=5), st.integers(0, 2**40), st.integers(1, 40))
@example([(1.0, None), (3.0, 20)], 15, 40)  # over the end of a source
@example([(1.0, None), (3.0, None)], 2**60, 5)  # products beyond 64 bits
def test_rows_are_those_of_the_plan(sources, start, count):
    plan = MixturePlan(*zip(*sources, strict=True))
    start %= max(1, len(plan) - count)
    stop = min(start + count, len(plan))
    found = list(zip(*(each.tolist() for each in drawn_rows(plan, start, stop)), strict=True))
    assert found == [plan[row] for row in range(start, stop)]
    assert drawn_before(plan, np.array([start, stop])).tolist() == [plan.drawn(start), plan.drawn(stop)]


def test_rows_behind_the_end_are_refused():
    plan = MixturePlan([1.0, 2.0], [3, 4])
    assert drawn_rows(plan, 0, 7)[0].tolist().count(1) == 4
    with pytest.raises(IndexError, match="rows 5 to 8 of 7"):
        drawn_rows(plan, 5, 8)
