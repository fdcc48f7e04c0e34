"""Every objective in the loop, and PTX beside one of them."""

import numpy as np
import pytest

from k2jax.config import resolve, source
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.trajectory.annotations import training
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.tiny import register, tiny, tiny_config
from tests.train.tiny import write_corpus

SHORT = {"train.steps": 1, "rl.eval_prompts": 0}


def clipped_share(workdir, name):
    """The mean over updates of the share of sampled tokens that trajectories say were clipped."""
    counts = {}
    for trajectory in TrajectoryStore(workdir / "trajectories").read(1):
        marks = training(trajectory)
        (sampled,) = [len(node.tokens) for node in trajectory.nodes if node.turn == 0]
        clipped = sum(map(len, marks.clipped.values())) if name == "k2.5" else sampled * len(marks.clipped_turns)
        of_update = counts.setdefault(marks.update, [0, 0])
        of_update[0], of_update[1] = of_update[0] + clipped, of_update[1] + sampled
    return np.mean([clipped / sampled for clipped, sampled in counts.values()])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["k2.5", "kat", "reinforce"])
def test_an_iteration_with_another_objective(tmp_path, name):
    """With K2.5's and KAT's the trajectories say what was clipped, and the metrics say the same."""
    band = {"k2.5": 0.02, "kat": 0.002}.get(name)
    more = {"rl.loss.ratio_low": 1 - band, "rl.loss.ratio_high": 1 + band, "rl.record_masks": True} if band else {}
    assert train(tiny(**SHORT, **more, **{"rl.loss.name": name}), tmp_path / name) == 0
    if band:
        (record,) = read_metrics(tmp_path / name)
        assert clipped_share(tmp_path / name, name) == pytest.approx(record["policy/clipped"], rel=1e-5)
        assert 0.01 < record["policy/clipped"] < 0.95
    (record,) = read_metrics(tmp_path / name)
    assert record["updates"] == 2 and 0 < abs(record["loss"]) < 1 and record["grad_norm"] > 0
    assert record["tokens/mismatch"] < 1e-5


def with_ptx(folder):
    """K2's objective with two rows of PTX from text files in every update; a checkpoint after each iteration."""
    register()
    config = tiny_config()
    config.data.sources.one = source(kind="text", path=f"{folder}/one")
    del config.data.sources.stdlib
    config.data.cache_dir = f"{folder}/cache"
    changes = {"rl.loss.name": "k2", "rl.loss.ptx": 0.5, "rl.loss.ptx_rows": 2, "checkpoint.every": 1}
    config.update_from_flattened_dict(SHORT | changes | {"train.steps": 2})
    return resolve(config)


@pytest.mark.slow
def test_ptx_is_a_term_of_the_loss(tmp_path):
    write_corpus(tmp_path)
    assert train(with_ptx(tmp_path), tmp_path / "whole") == 0
    records = read_metrics(tmp_path / "whole")
    for record in records:
        assert record["ptx/nll"] == pytest.approx(np.log(258), abs=0.3)  # of a model that knows little yet
        assert record["loss/ptx"] == pytest.approx(record["ptx/nll"] / 2, rel=1e-5)
        assert record["updates"] == 2
    assert records[1]["ptx/nll"] < records[0]["ptx/nll"]
