"""Targets of policy losses: an empty row, and the temperature of its tokens."""

import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.losses.targets import NONE, PolicyTargets, empty_targets, token_temperature


def test_a_row_of_padding_belongs_to_no_turn_and_no_response():
    row = empty_targets(6, turns=3, responses=2)
    assert isinstance(row, PolicyTargets)
    for name, leaf in row._asdict().items():
        is_index = name in ("domain", "turn_first", "turn_last", "turn_response")
        assert leaf.shape == {"turn": (3,), "response": (2,)}.get(name.partition("_")[0], (6,))
        assert (leaf == (NONE if is_index else 0)).all()
        assert leaf.dtype == (np.int32 if is_index else np.float32)


def test_rows_with_targets_stack_to_a_batch():
    row = pack_row([np.arange(4)], 6).replace(targets=empty_targets(6, turns=3, responses=2))
    assert [leaf.shape for leaf in stack_rows([row, row]).targets[-1:]] == [(2, 2)]


@pytest.mark.parametrize(("turns", "responses"), [(6, 1), (1, 6), (0, 1), (1, 0)])
def test_tables_that_look_like_values_of_tokens_are_refused(turns, responses):
    with pytest.raises(ValueError, match="do not suit rows of 6 tokens"):
        empty_targets(6, turns, responses)


def test_logits_are_divided_by_the_temperature_of_sampling_and_by_one_elsewhere():
    row = empty_targets(3, 1, 1)._replace(temperature=np.array([0.0, 0.5, 2.0], np.float32))
    np.testing.assert_array_equal(token_temperature(row), [1.0, 0.5, 2.0])
