import math

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data.packing import RowSource, bits_per_byte
from tests.data.corpora import ListStream
from tests.refusal import refused

LENGTHS = st.lists(st.integers(2, 30), min_size=1, max_size=20)


@given(LENGTHS, st.integers(2, 25))
@example([5, 5, 5], 5)  # cuts on and beside document boundaries
@example([9, 8, 8], 9)
@example([2], 2)
def test_every_token_but_a_documents_first_is_a_target_exactly_once(lengths, sequence):
    stream = ListStream(lengths)
    document = np.repeat(np.arange(len(lengths)), lengths)  # of each stream position; token p + 1 stands at p
    targets = []
    for row in map(RowSource(stream, sequence).__getitem__, range(len(RowSource(stream, sequence)))):
        assert row.tokens.shape == (sequence,)
        for at in np.flatnonzero(row.targets["weights"]):
            position = row.tokens[at] - 1
            assert row.targets["weights"][at] == 1
            assert row.tokens[row.parent[at]] - 1 == position - 1  # predicted from the token before it ...
            assert document[position - 1] == document[position]  # ... of the same document
            targets.append(position)
        unweighted = row.targets["weights"] == 0
        assert (row.parent[unweighted] == -1).all()
    starts = {0, *np.cumsum(lengths)[:-1].tolist()}
    assert sorted(targets) == [p for p in range(sum(lengths)) if p not in starts]
    assert len(targets) == stream.targets


@given(LENGTHS, st.integers(2, 25))
def test_a_token_sees_its_own_document_and_nothing_else(lengths, sequence):
    stream = ListStream(lengths)
    document = np.repeat(np.arange(len(lengths)), lengths)
    rows = RowSource(stream, sequence)
    for index in range(len(rows)):
        row, at = rows[index], np.arange(sequence)
        sees = (at[None, :] <= at[:, None]) & (at[:, None] < row.exit[None, :])
        real = row.tokens > 0
        belongs = np.where(real, document[np.maximum(row.tokens, 1) - 1], -1)
        expected = (belongs[:, None] == belongs[None, :]) & real[:, None] & (at[None, :] <= at[:, None])
        assert np.array_equal(sees, expected)
        followed = np.maximum(row.parent, 0)
        assert (row.positions == np.where(row.parent < 0, 0, row.positions[followed] + 1))[row.exit > at + 1].all()
        assert real.all() or index == len(rows) - 1  # only the last row is padded, and only at its end
        assert not np.any(~real[:-1] & real[1:])


def test_rows_outside_the_split_are_refused():
    rows = RowSource(ListStream([6]), 4)
    for index in (-1, len(rows)):
        with pytest.raises(IndexError):
            rows[index]


@pytest.mark.parametrize("lengths", [[], [1]])
def test_a_split_without_a_target_is_one_line(lengths):
    with refused(f"holds {sum(lengths)} tokens: it needs at least 2"):
        RowSource(ListStream(lengths), 4)


def test_bits_per_byte():
    # Two bits a target, 300 targets, 200 bytes: 600 bits over 200 bytes. A third of the targets stands for a third.
    assert math.isclose(bits_per_byte(600 * math.log(2), 300, 300, 200), 3.0)
    assert math.isclose(bits_per_byte(200 * math.log(2), 100, 300, 200), 3.0)
