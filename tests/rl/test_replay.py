"""Experts chosen at sampling lie in trajectories, and beside their tokens in the rows that are trained on."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.batch import NO_EXPERTS, pack_row
from k2jax.config import PackingConfig
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.rl.packing.repacking import repacked
from k2jax.rl.packing.rows import pack, padding_like, parts_of, ptx_row
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.packing.test_rows import LAYOUTS, samples
from tests.rl.tiny import tiny

ROUTES = (3, 2)  # expert layers, active experts


def recorded(seed, count):
    """Samples whose nodes hold experts that tell which token they belong to; every fifth node has none."""
    found = samples(seed, count)
    rng = np.random.default_rng(seed)
    for number, sample in enumerate(found):
        nodes = sample.trajectory.nodes
        for index, node in enumerate(nodes):
            experts = node.tokens[:, None, None] * 6 + np.arange(6).reshape(ROUTES)
            unknown = rng.random() < 0.2
            nodes[index] = dataclasses.replace(node, experts=None if unknown else experts.astype(np.int16))
        sample.trajectory.key = (1, number, 0)  # what groups share would have the experts of the first of them
    return found


def experts_of_sampled(rows):
    """(token, its experts) of every sampled token, in order of its recorded log-probability."""
    found = []
    for row in rows:
        for index in np.flatnonzero(row.targets.mask):
            key = float(row.targets.behavior_logprob[index])
            found.append((key, int(row.tokens[index]), row.experts[index].tolist()))
    return sorted(found)


@LAYOUTS
@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_every_token_of_a_row_has_the_experts_that_were_recorded_of_it(layout, seed, count):
    items = recorded(seed, count)
    rows = pack(items, 64, PackingConfig(layout), routes=ROUTES).rows
    wanted = []
    for item in items:
        for node in item.trajectory.nodes:
            for t in np.flatnonzero(node.mask):
                experts = np.full(ROUTES, NO_EXPERTS) if node.experts is None else node.experts[t]
                wanted.append((float(node.logprobs[t]), int(node.tokens[t]), experts.tolist()))
    assert experts_of_sampled(rows) == sorted(wanted)
    moved, _ = repacked(rows, padding_like(rows[0]), np.random.default_rng(seed))
    assert experts_of_sampled(moved) == experts_of_sampled(rows)
    for row in rows:
        known = row.experts[:, 0, 0] != NO_EXPERTS
        np.testing.assert_array_equal(row.experts[known][:, 0, 0], row.tokens[known] * 6)  # of prompts too


def test_rows_of_padding_and_of_curated_text_leave_the_choice_to_the_router():
    rows = pack(recorded(0, 8), 64, PackingConfig(), routes=ROUTES).rows
    text = pack_row([np.arange(20)], 64)
    (part,) = parts_of([rows[0], ptx_row(text, ROUTES)], 4, [0, 1, 2, 3])
    assert part.experts.shape == (4, 64, *ROUTES) and part.experts.dtype == np.int16
    assert (part.experts[1:] == NO_EXPERTS).all() and (part.experts[0] != NO_EXPERTS).any()
    np.testing.assert_array_equal(part.tokens[1], text.tokens)


@pytest.mark.slow
def test_a_run_records_the_experts_of_what_it_samples_and_trains_with_them(tmp_path):
    overrides = {"rl.rollout.routing": "replay", "rl.loss.old": "recompute", "train.steps": 2, "rl.eval_prompts": 0}
    assert train(tiny(**overrides), tmp_path / "run") == 0
    for record in read_metrics(tmp_path / "run")[1:]:
        assert record["tokens/mismatch"] < 1e-5
    for trajectory in TrajectoryStore(tmp_path / "run" / "trajectories").read(1):
        path = np.concatenate([node.experts for node in trajectory.nodes])
        assert path.shape[1:] == (1, 2) and path.dtype == np.int16
        assert (path[-1] == NO_EXPERTS).all() and (path[:-1] >= 0).all() and (path[:-1] < 4).all()
        assert (path[:-1, 0, 0] != path[:-1, 0, 1]).all()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rl.rollout.routing": "replay"}, "replay needs rl.loss.old=recompute"),
        (
            {"rl.rollout.routing": "replay", "rl.loss.old": "recompute", "rl.distill.weight": 0.1}
            | {"rl.distill.teachers": ("a=b",)},
            "exclude each other: a teacher has experts",
        ),
        ({"rl.rollout.routing": "record", "model.dense_layers": 2}, "the model has no experts"),
    ],
)
def test_mistakes_are_one_line(overrides, words):
    with pytest.raises(UserError, match=words):
        tiny(**overrides)
