from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data import DataLoader, HeldOut, RowSource
from tests.data.corpora import ListStream, equal
from tests.refusal import refused

# Two sources that no batch confuses: rows of 4 tokens, 12 and 7 of them; their first tokens tell rows apart.
STREAMS = {"a": ListStream([37]), "b": ListStream([22])}
ROWS = {name: RowSource(stream, 4) for name, stream in STREAMS.items()}
MANY_ROWS = {"a": RowSource(ListStream([901]), 4), "b": RowSource(ListStream([601]), 4)}
SOURCES = {"a": SourceConfig(weight=2.0), "b": SourceConfig(weight=1.0)}


def loader(rows=ROWS, sources=SOURCES, **fields):
    return DataLoader(rows, sources, **({"batch_size": 4, "seed": 3, "steps": 40} | fields))


def row_numbers(data, steps, batch_size=4):
    """(source, row number) of every row in order; row i of a source begins with token 3 i + 1."""
    firsts = [int(row[0]) for step in range(steps) for row in data.batch(step).tokens]
    names = [name for step in range(steps) for name in data.sources(step)]
    return [(name, (first - 1) // 3) for name, first in zip(names, firsts, strict=True)]


@settings(max_examples=15)
@given(st.integers(0, 11), st.integers(0, 2**32 - 1))
def test_a_batch_does_not_depend_on_where_iteration_started(start, seed):
    data = loader(MANY_ROWS, seed=seed, steps=12)
    batches = list(data.batches(start))
    assert len(batches) == 12 - start
    for step, batch in enumerate(batches, start):
        assert equal(batch, data.batch(step))
    assert equal(next(loader(MANY_ROWS, seed=seed, steps=12).batches(start)), batches[0])  # nor on what was read before


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_the_batch_of_one(count):
    parts = [loader(MANY_ROWS, local_rows=range(p * 4 // count, (p + 1) * 4 // count)) for p in range(count)]
    whole = loader(MANY_ROWS)
    for step in range(20):
        batches = [part.batch(step) for part in parts]
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
        assert batches[0].tokens.shape == (4 // count, 4)
        assert equal(joined, whole.batch(step))


def test_rows_beyond_the_batch_are_padding():
    whole, more = loader(MANY_ROWS).batch(3), loader(MANY_ROWS, local_rows=[1, 4, 3, 5]).batch(3)
    assert np.array_equal(more.tokens[[0, 2]], whole.tokens[[1, 3]])
    assert not more.targets["weights"][[1, 3]].any() and (more.exit[1] == np.arange(4)).all()


def test_each_epoch_has_every_row_once_in_a_new_order():
    data = loader({"b": ROWS["b"]}, {"b": SourceConfig()}, batch_size=7, steps=4)
    epochs = [[row for _, row in row_numbers(data, 4)][i : i + 7] for i in range(0, 28, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1
    assert data.epochs(3) == {"b": 3.0}


def test_the_order_of_rows_is_pinned():
    """A checkpoint resumes by step alone: whatever changes this order breaks every run in progress."""
    order = row_numbers(loader(seed=0), 3)
    assert order == [
        ("a", 4), ("a", 6), ("a", 8), ("b", 6), ("a", 1), ("a", 5),
        ("b", 5), ("a", 11), ("a", 7), ("b", 1), ("a", 9), ("a", 10),
    ]  # fmt: skip
    assert len({tuple(row_numbers(loader(seed=seed), 6)) for seed in range(5)}) == 5


def test_sources_drop_out_after_their_passes():
    sources = {"a": SourceConfig(weight=1.0, max_epochs=1.5), "b": SourceConfig(weight=1.0, max_epochs=2.0)}
    data = loader(sources=sources, steps=8)
    drawn = row_numbers(data, 8)
    assert sorted(drawn) == sorted(
        [("b", row) for row in range(7)] * 2 + [pair for pair in drawn if pair[0] == "a"]
    )  # every row of b exactly twice
    a = [row for name, row in drawn if name == "a"]
    assert len(a) == 18 and sorted(a[:12]) == list(range(12)) and len(set(a[12:])) == 6
    assert data.epochs(8) == {"a": 1.5, "b": 2.0}
    with refused("allow 8 steps of 4 rows, not 9"):
        loader(sources=sources, steps=9)
    data = loader(sources={"a": SourceConfig(max_epochs=1.0), "b": SourceConfig()}, steps=10**9)
    assert data.sources(10**8) == ["b"] * 4 and data.epochs(100)["a"] == 1.0  # one without a limit lasts


def targets(batches):
    """Target tokens of batches, sorted."""
    return sorted(int(t) for batch in batches for t in batch.tokens[batch.targets["weights"] > 0])


def test_validation_covers_every_held_out_target_once():
    held_out = HeldOut({"b": ROWS["b"], "a": ROWS["a"]})
    batches = list(held_out.batches(4))
    assert [batch.tokens.shape for batch in batches] == [(4, 4)] * 5  # 19 rows and one of padding
    assert targets(batches) == sorted([*range(2, 38), *range(2, 23)])
    last = batches[-1]
    assert (last.tokens[3] == 0).all() and (last.exit[3] == np.arange(4)).all() and (last.parent[3] == -1).all()
    assert (held_out.rows, held_out.targets, held_out.bytes, held_out.documents) == (19, 57, 177, 2)
    assert all(map(equal, batches, held_out.batches(4)))


def test_validation_rows_of_a_source_or_a_subset_that_is_evenly_spaced():
    held_out = HeldOut({"few": ROWS["b"], "more": RowSource(ListStream([301]), 4)})  # 7 and 100 rows
    assert targets(held_out.batches(4, source="few")) == [*range(2, 23)]
    for count, expected in ((5, (0, 20, 40, 60, 80)), (3, (0, 33, 66))):
        firsts = [int(row[0]) for batch in held_out.batches(2, count, "more") for row in batch.tokens if row[0]]
        assert firsts == [1 + 3 * row for row in expected]
    assert targets(held_out.batches(8, rows=1000, source="more")) == list(range(2, 302))


def test_processes_share_validation_batches():
    whole = list(HeldOut(ROWS).batches(4, rows=6))
    parts = [list(HeldOut(ROWS, local_rows=rows).batches(4, rows=6)) for rows in ((0, 1), (2, 3, 4))]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert np.array_equal(batch.tokens, np.concatenate([first.tokens, second.tokens[:2]]))
        assert not second.targets["weights"][2].any()  # row 4 of a batch of 4


def test_bits_per_byte_of_the_held_out_split():
    held_out = HeldOut(ROWS)  # 57 targets, 177 bytes
    assert held_out.bits_per_byte(57 * np.log(2), 57) == pytest.approx(57 / 177)
    assert held_out.bits_per_byte(10 * np.log(2), 10) == pytest.approx(57 / 177)
