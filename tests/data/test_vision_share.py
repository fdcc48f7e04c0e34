"""Shares of tokens by phases: what batches hold is counted, and compared with what was asked for."""

import functools
import itertools
from unittest import mock

import grain
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config import defaults, resolve, source
from k2jax.config.identity import fixed_keys
from k2jax.config.schema import SourceConfig
from k2jax.data import DataLoader
from k2jax.data.conversation_rows import ConversationRows
from k2jax.data.vision_share import VisionShare, vision_share
from tests.data.corpora import ListStream, equal
from tests.refusal import refused

LENGTH, BATCH = 64, 4
TABLE_1 = {"early": ((0.1,), (0.0,)), "mid": ((0.0, 0.2), (0.0, 0.5)), "late": ((0.0, 0.5), (0.0, 0.8))}
STEPS = 400
BUDGET = STEPS * BATCH / (0.1 / 24 + 0.9 / LENGTH)  # tokens of all steps, the same for all three


class FakeRows(ConversationRows):
    """Rows of documents of these lengths, one a row; the last token of a row says which source it is of."""

    def __init__(self, lengths):
        super().__init__(ListStream(lengths), LENGTH)
        self._windows, self._starts = [[[number] for number in range(len(lengths))]], [0, len(lengths)]


def loader(rows, share, *, steps, weights=None, epochs=None, batch_size=BATCH, seed=0):
    weights, epochs = weights or dict.fromkeys(rows, 1.0), epochs or {}
    sources = {name: SourceConfig(weight=weights[name], max_epochs=epochs.get(name, 0.0)) for name in rows}
    return DataLoader(rows, sources, batch_size=batch_size, seed=seed, steps=steps, vision_share=share)


def tokens_by_source(data, steps):
    """Tokens that are no padding, of every source, in the batches of these steps."""
    totals = {}
    for step in steps:
        batch = data.batch(step)
        real = (batch.exit > np.arange(LENGTH)).sum(1)
        for name, count in zip(data.sources(step), real.tolist(), strict=True):
            totals[name] = totals.get(name, 0) + count
    return totals


class Reordered(grain.MapDataset):
    """Rows of a parent in an order of its own in every pass, as ``shuffle`` gives them.

    grain takes 15 ms to shuffle an index of two rows and 7 ms one of five: it walks through 2^16 numbers to the next.
    """

    def __init__(self, parent, *, seed):
        super().__init__(parent)
        self._order = functools.cache(lambda epoch: np.random.default_rng((seed, epoch)).permutation(len(parent)))

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        epoch, place = divmod(index, len(self))
        return self._parent[epoch * len(self) + int(self._order(epoch)[place])]


LENGTHS = st.lists(st.integers(4, LENGTH), min_size=4, max_size=8)
STARTS = st.lists(st.floats(0.2, 0.8), max_size=2, unique_by=lambda start: round(start, 1)).map(
    lambda s: (0.0, *sorted(s))
)


@settings(max_examples=8, deadline=None)
@given(LENGTHS, LENGTHS, LENGTHS, STARTS, st.data())
def test_the_tokens_of_every_phase_have_its_share_and_phases_begin_at_shares_of_all_tokens(
    pictures, clips, text, starts, data
):
    rows = {"pictures": FakeRows(pictures), "clips": FakeRows(clips), "text": FakeRows(text)}
    shares = tuple(data.draw(st.floats(0, 1)) for _ in starts)
    share = VisionShare(frozenset({"pictures", "clips"}), shares, starts)
    weights, steps = {"pictures": 2.0, "clips": 1.0, "text": 1.0}, 250
    # What follows is so for any order of a pass.
    with mock.patch.object(grain.MapDataset, "shuffle", lambda rows, seed: Reordered(rows, seed=seed)):
        plan = loader(rows, share, steps=steps, weights=weights, seed=data.draw(st.integers(0, 2**31)))
    counts = [tokens_by_source(plan, [step]) for step in range(steps)]
    until = np.cumsum([0, *(sum(count.values()) for count in counts)])
    # Passes that a phase cuts at both ends, and rows by which integers differ from the wanted shares.
    slack = sum(
        np.abs(np.subtract(lengths, np.mean(lengths))).sum() + 2 * LENGTH for lengths in (pictures, clips, text)
    )
    firsts = [int(np.searchsorted(until, start * until[-1])) for start in starts]
    for wanted, first, last in zip(shares, firsts, [*firsts[1:], steps], strict=True):
        inside = range(first + 4 if first else 0, last - 4)  # not the boundary, known from all tokens, up to its slack
        visual = sum(counts[step].get(name, 0) for step in inside for name in ("pictures", "clips"))
        assert abs(visual - wanted * sum(sum(counts[step].values()) for step in inside)) <= slack
        drawn = [name for step in inside for name in plan.sources(step) if name != "text"]
        assert abs(drawn.count("clips") - len(drawn) / 3) <= 3


@pytest.mark.parametrize("name", TABLE_1)
def test_early_mid_and_late_fusion_have_equal_budgets(name):
    rng = np.random.default_rng(0)
    rows = {"pictures": FakeRows(rng.integers(8, 41, 30).tolist()), "text": FakeRows([LENGTH] * 50)}
    config = defaults("pretrain", vision="nano_vision")
    config.data.sources.pictures = source(kind="synthetic_images")
    config.data.images.share, config.data.images.share_from = TABLE_1[name]
    data = loader(rows, vision_share(resolve(config).data), steps=STEPS)
    counts = [tokens_by_source(data, [step]) for step in range(STEPS)]
    until = np.cumsum([sum(count.values()) for count in counts])
    pictures = np.cumsum([count.get("pictures", 0) for count in counts])
    assert until[-1] == pytest.approx(BUDGET, rel=0.01) and pictures[-1] == pytest.approx(BUDGET / 10, rel=0.02)


@settings(max_examples=5)
@given(st.integers(0, 39), st.integers(0, 2**31))
def test_a_batch_is_a_function_of_seed_and_step(step, seed):
    # Several passes, of sources that are not so short that grain shuffles slowly.
    rows = {"pictures": FakeRows([9, 20, 33] * 5), "text": FakeRows([LENGTH] * 30)}
    share = VisionShare(frozenset({"pictures"}), (0.0, 0.3, 0.6), (0.0, 0.25, 0.7))
    whole, later = (loader(rows, share, steps=40, seed=seed) for _ in range(2))
    assert equal(whole.batch(step), next(later.batches(step)))
    assert equal(next(itertools.islice(whole.batches(0), step, None)), later.batch(step))


def test_a_source_that_is_used_up_leaves_its_share_to_its_kind_and_without_one_the_run_is_refused():
    rows = {"pictures": FakeRows([16] * 8), "clips": FakeRows([32] * 8), "text": FakeRows([LENGTH] * 8)}
    share = VisionShare(frozenset({"pictures", "clips"}), (0.5,), (0.0,))
    data = loader(rows, share, steps=60, epochs={"pictures": 2.0})
    counted = tokens_by_source(data, range(30, 60))
    assert "pictures" not in counted
    assert counted["clips"] / sum(counted.values()) == pytest.approx(0.5, abs=0.01)
    with refused("not 60: every source with images, or every other, has max_epochs"):
        loader(rows, share, steps=60, epochs={"pictures": 2.0, "clips": 2.0})


@pytest.mark.parametrize(
    ("share", "starts", "words"),
    [
        ((0.1, 0.2), (0.0,), "must ascend from 0.0, with one number for each of the 2"),
        ((0.1,), (0.5,), "must ascend from 0.0"),
        ((0.1, 0.2, 0.3), (0.0, 0.5, 0.5), "must ascend"),
        ((1.5,), (0.0,), r"data.images.share must be in \[0, 1\]"),
        ((0.1,), (0.0,), "needs a source with images"),
    ],
)
def test_impossible_phases_are_refused_in_one_line(share, starts, words):
    config = defaults("pretrain", vision="nano_vision")
    config.data.images.share, config.data.images.share_from = share, starts
    with refused(words):
        resolve(config)


def test_a_run_with_phases_keeps_its_length():
    config = defaults("pretrain", vision="nano_vision")
    config.data.sources.pictures = source(kind="synthetic_images")
    assert "train.steps" not in fixed_keys(resolve(config))
    config.data.images.share = (0.1,)
    assert "train.steps" not in fixed_keys(resolve(config))
    config.data.images.share, config.data.images.share_from = (0.1, 0.5), (0.0, 0.8)
    assert "train.steps" in fixed_keys(resolve(config))
