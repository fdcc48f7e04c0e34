"""Rows hold every sampled token behind its own context, with the targets of its trajectory, in both layouts."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config import PackingConfig
from k2jax.rl.packing.rows import empty_row, in_updates, pack, parts_of
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.trajectory import Node
from tests.rl.trees import forked, sampled, several_turns, single_turn

MAKERS = (single_turn, several_turns, forked)
LAYOUTS = pytest.mark.parametrize("layout", ["paths", "tree"])


def samples(seed, count):
    rng = np.random.default_rng(seed)
    return [TrainingSample(MAKERS[rng.integers(3)](rng), float(rng.normal())) for _ in range(count)]


def context(row, index):
    """Tokens that the prediction of a token may see, in order, by the definition of the mask."""
    parent = row.parent[index]
    return [int(row.tokens[j]) for j in range(parent + 1) if j <= parent < row.exit[j]]


def expected(sample):
    """(context, token, logprob, advantage, temperature) of every sampled token, from the tree alone."""
    found = []
    for node in sample.trajectory.nodes:
        if node.mask.any():
            before = sample.trajectory.path_tokens(node.parent).tolist()
            for t, token in enumerate(node.tokens.tolist()):
                known = before + node.tokens[:t].tolist()
                found.append((known, token, float(node.logprobs[t]), np.float32(sample.advantage), node.temperature))
    return found


@LAYOUTS
def test_what_a_tool_shows_after_the_last_answer_takes_no_room(layout):
    """It is longer than a row."""
    one, other = (several_turns(np.random.default_rng(0)) for _ in range(2))
    other.add(Node.observed(other.leaves()[0], np.full(500, 7, np.int32)))
    rows, others = (pack([TrainingSample(each, 1.0)], 64, PackingConfig(layout)).rows for each in (one, other))
    assert len(rows) == len(others)
    for row, same in zip(rows, others, strict=True):
        np.testing.assert_array_equal(row.tokens, same.tokens)
        np.testing.assert_array_equal(row.targets.mask, same.targets.mask)


@LAYOUTS
@pytest.mark.parametrize("splits", [False, True])
def test_a_response_that_fits_no_row_is_returned_and_the_others_are_packed(layout, splits):
    """Of several paths it is cut between them where the loss allows; no path is cut."""
    rng = np.random.default_rng(0)
    large, longer, small = single_turn(rng), single_turn(rng, response=90), single_turn(rng)
    for turn in range(1, 9):
        seen = large.add(Node.observed(-1, rng.integers(0, 50, 10)))
        large.add(sampled(rng, seen, 20, turn))
    items = [TrainingSample(each, 1.0) for each in (large, longer, small)]
    packed = pack(items, 64, PackingConfig(layout), splits_responses=splits)
    assert [each.trajectory for each in packed.too_large] == ([longer] if splits else [large, longer])
    wanted = sum(node.mask.sum() for each in ([large, small] if splits else [small]) for node in each.nodes)
    assert sum(row.targets.mask.sum() for row in packed.rows) == wanted
    assert not pack(items[1:2], 64, PackingConfig(layout), splits_responses=splits).rows


@LAYOUTS
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("turns", [1, 24, 25, 40])
def test_a_path_of_more_turns_than_a_row_has_entries_for_is_returned_too(layout, splits, turns):
    """A row of 96 tokens has 24: turns of two tokens are shorter than those of any chat format."""
    rng = np.random.default_rng(0)
    long = single_turn(rng, prompt=3, response=1)
    for turn in range(1, turns):
        seen = long.add(Node.observed(len(long.nodes) - 1, rng.integers(0, 50, 1)))
        long.add(sampled(rng, seen, 1, turn))
    packed = pack([TrainingSample(long, 1.0)], 96, PackingConfig(layout), splits_responses=splits)
    trained = sum(int(row.targets.mask.sum()) for row in packed.rows)
    assert (trained, len(packed.too_large)) == ((turns, 0) if turns <= 24 else (0, 1))


@LAYOUTS
@given(st.integers(0, 10_000), st.integers(1, 25))
def test_every_sampled_token_is_trained_on_once_behind_the_context_that_it_was_sampled_in(layout, seed, count):
    items = samples(seed, count)
    found = []
    for row in pack(items, 64, PackingConfig(layout)).rows:
        targets = row.targets
        for index in np.flatnonzero(targets.mask):
            assert targets.mask[index] == 1
            found.append((
                context(row, index), int(row.tokens[index]), float(targets.behavior_logprob[index]),
                targets.advantage[index], float(targets.temperature[index]),
            ))  # fmt: skip
        assert not targets.advantage[targets.mask == 0].any()
        np.testing.assert_array_equal(targets.old_logprob, targets.behavior_logprob)
    wanted = [token for item in items for token in expected(item)]
    key = lambda entry: (entry[0], entry[1], entry[2])  # noqa: E731
    assert sorted(found, key=key) == sorted(wanted, key=key)


@LAYOUTS
@given(st.integers(0, 10_000), st.integers(1, 25))
def test_tables_of_turns_and_responses_agree_with_the_tokens(layout, seed, count):
    items = samples(seed, count)
    rows = pack(items, 64, PackingConfig(layout)).rows
    assert sum(row.targets.response_weight.sum() for row in rows) == pytest.approx(len(items))
    np.testing.assert_allclose(sum(row.targets.turn_weight.sum() for row in rows), len(items), rtol=1e-6)
    for row in rows:
        targets, responses = row.targets, np.zeros(len(row.targets.response_tokens))
        for n in np.flatnonzero(targets.turn_tokens):
            first, last = targets.turn_first[n], targets.turn_last[n]
            tokens = [t for t in range(first, last + 1) if last < row.exit[t] and targets.mask[t]]
            assert targets.turn_tokens[n] == len(tokens)
            assert set(targets.advantage[tokens]) == {targets.turn_advantage[n]}
            responses[targets.turn_response[n]] += len(tokens)
            assert targets.turn_advantage[n] == targets.response_advantage[targets.turn_response[n]]
        np.testing.assert_array_equal(targets.response_tokens, responses)
        assert targets.mask.sum() == responses.sum()


def test_parts_have_one_shape_and_are_filled_up_with_padding():
    rows = pack(samples(0, 20), 64, PackingConfig()).rows
    parts = parts_of(rows, 4, [0, 1, 2, 3, 4])
    assert {part.tokens.shape for part in parts} == {(5, 64)}
    kept = np.concatenate([part.targets.mask[:4] for part in parts])
    np.testing.assert_array_equal(kept[: len(rows)], [row.targets.mask for row in rows])
    assert not kept[len(rows) :].any() and not any(part.targets.mask[4].any() for part in parts)
    assert not empty_row(64).targets.mask.any()


@given(st.integers(0, 9), st.integers(1, 5))
def test_updates_take_whole_groups_in_order(groups, updates):
    divided = list(in_updates([[(g, 0), (g, 1)] for g in range(groups)], updates))
    assert [sample for part in divided for sample in part] == [(g, s) for g in range(groups) for s in (0, 1)]
    assert all(part[0][1] == 0 and part[-1][1] == 1 for part in divided)
    sizes = [len(part) for part in divided]
    assert not sizes or max(sizes) - min(sizes) <= 2
