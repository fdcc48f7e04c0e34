"""What training is said to have left out is what a plain count over trajectories finds, whatever the rows are."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config import PackingConfig
from k2jax.config.schema import IcePopConfig
from k2jax.rl.methods.loss_masks import LossMasks
from k2jax.rl.packing.rows import pack
from k2jax.trajectory.annotations import training
from tests.rl.packing.path_reference import CONFIGS, HIGH, LOW, random_samples
from tests.rl.packing.test_tree_training import LENGTH, token_of

BAND = IcePopConfig(on=True, low=0.9, high=1.15)


def drawn(rng, scores, token):
    """log pi and log pi_old of a Token: functions of what it is, near its recorded log-probability."""
    return scores.setdefault(token, np.float32(token.logprob + rng.normal(0, [0.3, 0.1])))


def marked(samples, packed, loss, rng):
    """Marks of all samples by a pass whose log-probabilities are returned beside them."""
    scores, rows, table = {}, [], np.zeros((len(packed.rows), LENGTH), np.float32)
    for number, row in enumerate(packed.rows):
        old_S = row.targets.old_logprob.copy()
        for index in np.flatnonzero(row.targets.mask):
            table[number, index], old_S[index] = drawn(rng, scores, token_of(row, index))
        rows.append(row.replace(targets=row.targets._replace(old_logprob=old_S)))
    LossMasks(loss, lambda given: table * (given is rows)).mark(3, packed, rows)
    return scores


def expected(trajectory, advantage, scores, name):
    """Clipped tokens, zeroed tokens and clipped turns of one trajectory, node by node in float64."""
    clipped, zeroed, turns, every = {}, {}, {}, []
    outside = lambda ratio: ratio > HIGH if advantage > 0 else ratio < LOW  # noqa: E731
    for index, node in enumerate(trajectory.nodes):
        if not node.mask.any():
            continue
        ids, start = trajectory.path_tokens(index), len(trajectory.path_tokens(node.parent))
        pairs = []
        for place, logprob in enumerate(node.logprobs):
            own, old = scores[
                next(
                    token
                    for token in scores
                    if token.context == tuple(ids[: start + place + 1].tolist())
                    and token.logprob == float(logprob)
                    and token.temperature == round(node.temperature, 3)
                )
            ].astype(np.float64)
            pairs.append(own - old)
            if not BAND.low <= np.exp(old - logprob) <= BAND.high:
                zeroed.setdefault(index, {})[place] = np.exp(old - logprob)
            if name == "k2.5" and not LOW <= np.exp(own - old) <= HIGH:
                clipped.setdefault(index, {})[place] = np.exp(own - old)
            if name == "ppo" and outside(np.exp(own - old)):
                clipped.setdefault(index, {})[place] = np.exp(own - old)
        every += pairs
        ratio = np.exp(np.mean(pairs))
        if name == "kat" and outside(ratio):
            turns[node.turn] = ratio
    if name == "gspo" and outside(np.exp(np.mean(every))):
        sampled = [node.turn for node in trajectory.nodes if node.mask.any()]
        turns = dict.fromkeys(sampled, np.exp(np.mean(every)))
    return clipped, zeroed, turns


@pytest.mark.parametrize("name", ["k2.5", "kat", "gspo", "ppo"])
@pytest.mark.parametrize("layout", ["tree", "paths"])
@settings(max_examples=3)
@given(seed=st.integers(0, 2**16), shared_tokens=st.sampled_from(["unique", "paths"]))
def test_marks_are_those_of_every_path_by_itself(name, layout, seed, shared_tokens):
    rng = np.random.default_rng(seed)
    whole = name == "gspo"  # whose paths stay in one row, and whose turns have one mark each
    samples = random_samples(rng, 18 if whole else 30)
    packing = PackingConfig(layout, "unique" if whole else shared_tokens)
    packed = pack(samples, LENGTH, packing, splits_responses=not whole)
    loss = dataclasses.replace(CONFIGS[name], icepop=BAND)
    scores = marked(samples, packed, loss, rng)
    for trajectory, advantage, _ in samples:
        marks = training(trajectory)
        if not any(node.mask.any() for node in trajectory.nodes):
            assert marks is None
            continue
        assert marks.update == 3 and marks.advantage == advantage
        for found, wanted in zip(marks[2:], expected(trajectory, advantage, scores, name), strict=True):
            assert found.keys() == wanted.keys()
            for key, value in wanted.items():
                assert found[key] == pytest.approx(value, rel=1e-3)


def test_without_icepop_no_token_is_zeroed():
    rng = np.random.default_rng(0)
    samples = random_samples(rng, 30)
    packed = pack(samples, LENGTH, PackingConfig("tree", "unique"))
    off = dataclasses.replace(BAND, on=False)
    marked(samples, packed, dataclasses.replace(CONFIGS["k2.5"], icepop=off), rng)
    marks = [training(trajectory) for trajectory, _, _ in samples]
    assert any(each.clipped for each in marks) and not any(each.zeroed for each in marks)
