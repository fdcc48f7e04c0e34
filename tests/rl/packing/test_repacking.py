"""Documents that are laid out anew keep their context and their targets."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np

from k2jax.config import PackingConfig
from k2jax.rl.packing.repacking import documents, repacked
from k2jax.rl.packing.rows import empty_row, pack
from tests.rl.packing.test_rows import LAYOUTS, context, samples


def tokens_of(rows):
    """(context, token, position, old, temperature, advantage) of every sampled token."""
    return {
        (row, index): (
            context(rows[row], index), int(rows[row].tokens[index]), int(rows[row].positions[index]),
            float(rows[row].targets.old_logprob[index]), float(rows[row].targets.temperature[index]),
            float(rows[row].targets.advantage[index]),
        )
        for row in range(len(rows)) for index in np.flatnonzero(rows[row].targets.mask)
    }  # fmt: skip


@LAYOUTS
@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_every_token_keeps_its_context_and_its_place_is_known(layout, seed, count):
    rows = pack(samples(seed, count), 64, PackingConfig(layout)).rows
    before = tokens_of(rows)
    moved, places = repacked(rows, empty_row(64), np.random.default_rng(seed))
    assert sorted(old for old, _ in places) == documents(rows)
    assert sorted(new for _, new in places) == documents(moved)
    after = tokens_of(moved)
    found = {}
    for old, new in places:
        for step in range(old.end - old.start):
            if (new.row, new.start + step) in after:
                found[old.row, old.start + step] = after[new.row, new.start + step]
    assert found == before
    assert tokens_of(rows) == before  # the rows themselves are left alone


def test_another_seed_is_another_order_and_other_neighbours():
    rows = pack(samples(0, 20), 64, PackingConfig()).rows
    layouts = []
    for seed in (1, 1, 2):
        _, places = repacked(rows, empty_row(64), np.random.default_rng(seed))
        layouts.append(sorted(places))
    assert layouts[0] == layouts[1] != layouts[2]
    neighbours = [{frozenset(old for old, new in layout if new.row == row) for row in range(9)} for layout in layouts]
    assert neighbours[0] != neighbours[2]
