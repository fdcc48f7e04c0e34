"""Things go into few bins that are filled evenly."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.rl.packing.placement import place


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 6)), max_size=40))
def test_everything_is_in_one_bin_that_has_room_for_it(sizes):
    sizes = np.array(sizes, int).reshape(-1, 2)
    bins = place(sizes, (50, 6))
    assert sorted(index for things in bins for index in things) == list(range(len(sizes)))
    loads = np.array([sizes[things].sum(0) for things in bins]).reshape(-1, 2)
    assert (loads <= (50, 6)).all() and (loads[:, 0] > 0).all()
    assert bins == place(sizes, (50, 6))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_bins_are_as_few_as_best_fit_decreasing_promises(sizes):
    """Two bins are never both at most half full: fewer than twice the sum, rounded up."""
    bins = place(np.array(sizes)[:, None], (100,))
    loads = [sum(sizes[index] for index in things) for things in bins]
    assert len(bins) < 2 * np.ceil(sum(sizes) / 100) or len(bins) == 1
    assert len(bins) == 1 or sorted(loads)[0] + sorted(loads)[1] > 100


def test_bins_are_filled_evenly_where_that_takes_no_more_of_them():
    sizes = np.array([[5], [5], [5], [5], [3], [3]])  # best fit alone would fill 15, 11 of 16
    loads = sorted(int(sizes[things].sum()) for things in place(sizes, (16,)))
    assert loads == [13, 13]
    assert [sorted(things) for things in place(np.array([[6], [4], [4], [3], [3]]), (10,))] == [[0, 1], [2, 3, 4]]


def test_what_is_larger_than_a_bin_is_refused():
    with pytest.raises(ValueError, match="larger than a bin of \\(5, 1\\)"):
        place(np.array([[6, 1]]), (5, 1))
