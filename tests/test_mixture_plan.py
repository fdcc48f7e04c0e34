import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.mixture_plan import MixturePlan, interleaved

SOURCE = st.tuples(st.floats(0.01, 100), st.none() | st.integers(1, 60))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(0, 400))
def test_interleaving_gives_each_source_its_share(shares, row):
    counts, after = interleaved(row, shares), interleaved(row + 1, shares)
    assert sum(counts) == row
    assert sorted(b - a for a, b in zip(counts, after, strict=True)) == [0] * (len(shares) - 1) + [1]
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - row * share / sum(shares)) < len(shares)
        assert share or not count


@given(st.lists(SOURCE, min_size=1, max_size=5))
def test_rows_come_in_order_and_sources_drop_out_at_their_limits(sources):
    weights, limits = zip(*sources, strict=True)
    plan = MixturePlan(weights, limits)
    total = None if None in limits else sum(limits)
    assert plan.rows == total
    counts = [0] * len(sources)
    for row in range(300 if total is None else total):
        assert plan.drawn(row) == counts
        source, key = plan[row]
        assert key == counts[source]  # nothing skipped, nothing twice
        counts[source] += 1
        assert limits[source] is None or counts[source] <= limits[source]
    if total is not None:
        assert counts == list(limits)
        with pytest.raises(IndexError):
            plan[total]


def test_the_share_of_a_finished_source_goes_to_the_others():
    plan = MixturePlan([2.0, 1.0, 1.0], [10, None, None])
    end = plan.phases[1].start
    assert plan.drawn(end)[0] == 10 and plan.drawn(end - 1)[0] == 9
    assert math.isclose(end, 20, abs_tol=2)  # half of the rows until then
    after = [b - a for a, b in zip(plan.drawn(end), plan.drawn(end + 100), strict=True)]
    assert after == [0, 50, 50]


def test_limits_reached_at_far_rows_are_found_without_walking():
    plan = MixturePlan([0.003, 0.997], [10**9, None])
    end = plan.phases[1].start
    assert plan.drawn(end)[0] == 10**9 and plan.drawn(end - 1)[0] == 10**9 - 1
    assert math.isclose(end, 10**9 / 0.003, rel_tol=1e-4)
