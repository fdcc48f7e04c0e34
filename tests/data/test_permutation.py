"""The order of rows: a bijection of any size, even, without memory of what is beside what."""

import dataclasses
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data import DataLoader, RowSource, permutation
from k2jax.data.permutation import LARGEST_OF_GRAIN, Permutation, shuffled
from tests.data.corpora import ListStream

ROWS = 3_800_000_000
PINNED = [1247366895, 1353141791, 1407847956, 1311247094, 1803982546]
SIZES = [LARGEST_OF_GRAIN + 1, 10**6, ROWS, 2**32, 2**32 + 3, 2**40 - 1]


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_every_index_goes_to_one_place_and_back(size, seed, epoch):
    order = Permutation(size, seed, epoch)
    places = [order[index] for index in range(size)]
    assert sorted(places) == list(range(size)) and len(order) == size
    assert [order.index(place) for place in places] == list(range(size))
    for outside in (-1, size):
        with pytest.raises(IndexError):
            order[outside]


@settings(max_examples=30)
@given(st.sampled_from(SIZES), st.data(), st.integers(0, 2**32 - 1))
def test_places_of_very_many_lead_back(size, data, seed):
    order, index = Permutation(size, seed, 0), data.draw(st.integers(0, size - 1))
    assert 0 <= order[index] < size and order.index(order[index]) == index and order[order.index(index)] == index


@pytest.mark.parametrize("size", SIZES)
def test_rows_that_follow_each_other_are_from_anywhere(size):
    """A chi-square over 64 parts of the source, and the correlation of neighbours, which of grain's order is 0.65."""
    draws = [0, size // 2, 3 * size - 2000]  # of several passes
    found = [np.array([shuffled(range(size), 5)[draw + n] for n in range(2000)]) for draw in draws]
    for places in found:
        counts = np.bincount(places // (size // 64 + 1), minlength=64)
        assert ((counts - 31.25) ** 2 / 31.25).sum() < 125  # 63 degrees of freedom: p = 1e-5
        for distance in (1, 2, 64):
            assert abs(np.corrcoef(places[:-distance], places[distance:])[0, 1]) < 0.1  # 4.5 deviations
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.1
    assert len(np.unique(found[0])) == 2000


def test_orders_of_seeds_and_passes_are_independent():
    orders = {(seed, epoch): [Permutation(ROWS, seed, epoch)[n] for n in range(500)]
              for seed in (0, 1) for epoch in (0, 1)}  # fmt: skip
    flat = [place for order in orders.values() for place in order]
    assert len(set(flat)) == len(flat)
    assert np.abs(np.corrcoef(list(orders.values())) - np.eye(4)).max() < 0.2


def test_the_order_of_a_large_source_is_pinned():
    """A checkpoint resumes by step alone."""
    rows = shuffled(range(ROWS), 7)
    assert [rows[draw] for draw in (0, 1, 2, ROWS, 2 * ROWS + 9)] == PINNED
    assert pickle.loads(pickle.dumps(rows))[1] == PINNED[1]


def test_every_pass_over_a_large_source_has_all_rows(monkeypatch):
    monkeypatch.setattr(permutation, "LARGEST_OF_GRAIN", 50)
    rows = {"s": RowSource(ListStream([601]), 4)}  # 200 rows; row i begins with token 3 i + 1
    loader = DataLoader(rows, {"s": SourceConfig()}, batch_size=8, seed=0, steps=75)
    drawn = np.concatenate([loader.batch(step).tokens[:, 0] // 3 for step in range(75)])
    passes = drawn.reshape(3, 200)
    assert all(sorted(each.tolist()) == list(range(200)) for each in passes)
    assert len({tuple(each.tolist()) for each in passes}) == 3


@dataclasses.dataclass
class Many:
    """A source with so many rows that are never read."""

    rows: int
    length: int = 4

    def __len__(self):
        return self.rows

    @property
    def tokens(self):
        return 4 * self.rows

    def beginning(self, number, tokens):
        raise NotImplementedError


def test_a_run_whose_order_is_another_is_not_continued():
    for rows, expected in ((LARGEST_OF_GRAIN, []), (LARGEST_OF_GRAIN + 1, ["permuted"])):
        loader = DataLoader({"s": Many(rows)}, {"s": SourceConfig()}, batch_size=8, seed=0, steps=75)
        assert loader.identity == expected


@pytest.mark.slow
@pytest.mark.parametrize("size", [ROWS, 2**33 + 1])
def test_a_million_rows_in_a_row_are_distinct_and_even(size):
    """Of independent places 130 and 58 pairs would be equal."""
    order = Permutation(size, 3, 0)
    places = np.array([order[10**7 + n] for n in range(10**6)])
    assert len(np.unique(places)) == len(places)
    counts = np.bincount(places * 1000 // size, minlength=1000)
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() == pytest.approx(1000, abs=5 * np.sqrt(2000))
