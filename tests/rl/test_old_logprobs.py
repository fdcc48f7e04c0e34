"""log pi_old by forward passes of the trainer: one pass, and means of several that differ (MCLA)."""

import dataclasses

import jax
import numpy as np
import pytest

from k2jax.config import MCLAConfig, PackingConfig, PolicyLossConfig
from k2jax.model import model_specs
from k2jax.params import initialize
from k2jax.rl.methods.mcla import MCLA
from k2jax.rl.packing.repacking import repacked
from k2jax.rl.packing.rows import empty_row, pack
from k2jax.rl.packing.training_paths import TrainingSample
from tests.rl.noisy_scores import noisy_scores
from tests.rl.tiny import tiny
from tests.rl.trees import single_turn

ROWS, LENGTH, REPEATS = 32, 96, 12


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 20, (110, 2))
    return pack([TrainingSample(single_turn(rng, *pair), 1.0) for pair in lengths], LENGTH, PackingConfig()).rows


@pytest.fixture(scope="module")
def scores():
    """Forward passes with and without noise, by its standard deviation."""
    config = tiny()
    params = initialize(model_specs(config.model), jax.random.key(0), 0.1)
    return {sigma: noisy_scores(config, params, sigma, ROWS) for sigma in (0.0, 0.5)}


def passes_of(score, passes, notes=None):
    config = tiny()
    loss = PolicyLossConfig(old="recompute", mcla=MCLAConfig(passes))
    config = dataclasses.replace(config, rl=dataclasses.replace(config.rl, loss=loss))
    return MCLA(config, score, ([] if notes is None else notes).append)


def sampled(rows, values):
    """What rows ``[S]`` of values say of sampled tokens, in one array."""
    return np.concatenate([value[row.targets.mask > 0] for row, value in zip(rows, values, strict=True)])


def leaf(rows, name):
    return sampled(rows, [getattr(row.targets, name) for row in rows])


def one_pass(score, rows, seed):
    """Log-probabilities of sampled tokens in one pass with a packing of its own."""
    moved, places = repacked(rows, empty_row(LENGTH), np.random.default_rng([9, seed]))
    found, table = score(moved), np.zeros((len(rows), LENGTH))
    for old, new in places:
        table[old.row, old.start : old.end] = found[new.row, new.start : new.end]
    return sampled(rows, table)


def variance(samples):
    return np.var(np.stack(samples), axis=0, ddof=1).mean()


def test_the_variance_of_the_mean_of_several_passes_falls_with_their_number(rows, scores):
    ones = [one_pass(scores[0.5], rows, seed) for seed in range(3 * REPEATS)]
    sigma2 = variance(ones)
    assert sigma2 > 1e-4
    for passes in (2, 4):
        notes = []
        old_logprobs = passes_of(scores[0.5], passes, notes)
        old, records = zip(*[old_logprobs.fill(step, [rows]) for step in range(REPEATS)], strict=True)
        old = [leaf(updates[0], "old_logprob") for updates in old]
        np.testing.assert_allclose(variance(old), sigma2 / passes, rtol=0.1)
        np.testing.assert_allclose(np.mean([record["mcla_std"] ** 2 for record in records]), sigma2, rtol=0.1)
        # The log-ratio of an update takes its log pi from a pass of its own.
        log_ratios = [one - mean for one, mean in zip(ones, old, strict=False)]
        np.testing.assert_allclose(variance(log_ratios), sigma2 * (1 + 1 / passes), rtol=0.1)
        assert not notes


def test_without_noise_the_passes_agree_and_it_is_said_once_that_averaging_is_inactive(rows, scores):
    notes = []
    old_logprobs = passes_of(scores[0.0], 3, notes)
    for step in (1, 2):
        (filled,), record = old_logprobs.fill(step, [rows])
        np.testing.assert_allclose(leaf(filled, "old_logprob"), sampled(rows, scores[0.0](rows)), atol=1e-5)
        assert record["mcla_std"] < 1e-5
    assert len(notes) == 1 and notes[0].startswith("MCLA is inactive") and "\n" not in notes[0]


def test_one_pass_scores_the_rows_as_they_train_and_leaves_the_engine_s_alone(rows, scores):
    filled, record = passes_of(scores[0.5], 1).fill(1, [rows[:3], rows[3:7]])
    assert [len(update) for update in filled] == [3, 4] and record.keys() == {"recompute_seconds"}
    for update, expected in zip(filled, (rows[:3], rows[3:7]), strict=True):
        values = scores[0.5](expected)
        for row, before, value in zip(update, expected, values, strict=True):
            mask = before.targets.mask > 0
            np.testing.assert_array_equal(row.targets.old_logprob, np.where(mask, value, 0))
            np.testing.assert_array_equal(row.targets.behavior_logprob, before.targets.behavior_logprob)
            assert not np.array_equal(row.targets.old_logprob, before.targets.old_logprob)


def test_the_packing_of_a_pass_is_a_function_of_seed_and_step(rows, scores):
    first, again, other = (passes_of(scores[0.5], 2).fill(step, [rows])[0][0] for step in (1, 1, 2))
    np.testing.assert_array_equal(leaf(first, "old_logprob"), leaf(again, "old_logprob"))
    assert (leaf(first, "old_logprob") != leaf(other, "old_logprob")).any()
