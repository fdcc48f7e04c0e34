"""PackedBatch: the fields of packed rows."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), max_size=5), st.integers(0, 4))
def test_packed_rows_keep_documents_apart(lengths, room):
    documents = [np.arange(1, n + 1) for n in lengths]
    row = pack_row(documents, sum(lengths) + room)
    at = 0
    for n in lengths:
        for i in range(n):
            t = at + i
            assert (row.tokens[t], row.positions[t], row.exit[t]) == (i + 1, i, at + n)
            assert row.parent[t] == (t - 1 if i else -1) and row.targets["weights"][t] == (1.0 if i else 0.0)
        at += n
    for t in range(at, at + room):
        fields = (row.tokens[t], row.positions[t], row.exit[t], row.parent[t], row.targets["weights"][t])
        assert fields == (0, 0, t, -1, 0.0)


def test_rows_stack_and_overfull_rows_are_refused():
    rows = [pack_row([np.arange(3)], 4), pack_row([np.arange(4)], 4)]
    assert stack_rows(rows).tokens.shape == (2, 4)
    with pytest.raises(ValueError, match="do not fit"):
        pack_row([np.arange(5)], 4)
