"""Packing of whole lengths at a time beside placing one item after the other, and windows of conversations."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data import conversation_rows
from k2jax.data.best_fit import best_fit, fitted
from k2jax.data.conversation_rows import ConversationRows
from k2jax.data.tokenised import marked
from tests.data.corpora import ListStream


def one_by_one(lengths, capacity):
    """Best fit as it is defined; of rows with equal room the one that was filled last."""
    rows, rooms, used = [], [], []
    for clock, item in enumerate(sorted(range(len(lengths)), key=lambda item: (-lengths[item], item))):
        fitting = [row for row in range(len(rows)) if rooms[row] >= lengths[item]]
        if not fitting:
            rows.append([])
            rooms.append(capacity)
            used.append(0)
            fitting = [len(rows) - 1]
        row = min(fitting, key=lambda row: (rooms[row], -used[row]))
        rows[row].append(item)
        rooms[row], used[row] = rooms[row] - lengths[item], clock
    return sorted(sorted(row) for row in rows)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), max_size=50), st.integers(20, 40))
def test_whole_lengths_are_placed_as_one_item_after_the_other(lengths, capacity):
    assert best_fit(lengths, capacity) == one_by_one(lengths, capacity)


@settings(max_examples=20)
@given(st.lists(st.sampled_from([1, 2, 3, 7, 30]), min_size=40, max_size=120))
def test_many_items_of_few_lengths(lengths):
    assert best_fit(np.array(lengths, np.uint32).astype(np.int64), 31) == one_by_one(lengths, 31)


def test_rows_are_read_by_number():
    rows = fitted([3, 5, 2, 4], 7)
    assert len(rows) == 2 and [rows[0], rows[1], rows[-1]] == [[0, 3], [1, 2], [1, 2]]
    with pytest.raises(IndexError):
        rows[2]
    assert len(fitted([], 7)) == 0


class Conversations(ListStream):
    """Marked values: the id of a token is the number of its conversation."""

    def __init__(self, lengths):
        super().__init__(lengths)
        ids = np.repeat(np.arange(len(lengths)), lengths)
        self._content = marked(ids, np.ones(len(ids), bool))


def test_a_window_is_planned_by_itself_and_has_all_its_conversations(monkeypatch):
    lengths = np.random.default_rng(1).integers(2, 9, 50).tolist()
    whole = ConversationRows(Conversations(lengths), 16)
    monkeypatch.setattr(conversation_rows, "PLANNED_TOGETHER", 20)
    rows = ConversationRows(Conversations(lengths), 16)
    held = [sorted(set(rows[i].tokens[rows[i].exit > np.arange(16)].tolist())) for i in range(len(rows))]
    expected = [[first + item for item in row] for first in (0, 20, 40) for row in
                one_by_one(lengths[first : first + 20], 16)]  # fmt: skip
    assert held == expected and rows.tokens == whole.tokens == sum(lengths)
    monkeypatch.setattr(conversation_rows, "PLANNED_TOGETHER", 50)
    same = ConversationRows(Conversations(lengths), 16)
    assert len(same) == len(whole) and all((same[i].tokens == whole[i].tokens).all() for i in range(len(whole)))
