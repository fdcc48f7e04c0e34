"""Runs with several seeds: their names, what is said of them seed by seed, and how they are drawn."""

import numpy as np
import pytest

from k2jax.config import defaults, resolve
from k2jax.report.style import new_figure
from k2jax.reproduce import RunResult
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.seeds import SeedRecords, for_seeds, seeds_of

SHARES = {"start": {0: 0.5, 1: 0.7, 2: None}, "end": {0: 0.6, 1: 0.9, 2: 0.8}}


@pytest.fixture
def results():
    """Two runs of three seeds; the start of the last seed was not measured. Every curve is its seed, 4 steps long."""
    made = {}
    for run, of_seeds in SHARES.items():
        for seed, share in reversed(of_seeds.items()):
            config = defaults("pretrain")
            config.train.seed = seed
            records = [{"step": step, "length": float(seed)} for step in range(1, 5)]
            evaluation = {} if share is None else {"share": share}
            made[f"seed{seed}_{run}"] = RunResult(resolve(config), records, 0, evaluation)
    return made


def test_every_seed_has_the_runs_under_its_name_and_with_its_number():
    runs = for_seeds((3, 5), lambda seed: {"a": {"train.steps": seed}, "b": {"init_from": f"seed{seed}_a"}})
    assert list(runs) == ["seed3_a", "seed3_b", "seed5_a", "seed5_b"]
    assert runs["seed3_a"] == {"train.steps": 3, "train.seed": 3}
    assert runs["seed5_b"] == {"init_from": "seed5_a", "train.seed": 5}


def test_gains_are_paired_by_seed_and_leave_out_what_was_not_measured(results):
    measured = SeedRecords.of(results, SHARES)
    assert seeds_of(results) == measured.seeds == [0, 1, 2]
    assert measured.values("start", "share") == [0.5, 0.7, None]
    assert measured.spread("start", "share", 1) == "0.6 (0.5 to 0.7)"
    assert measured.gain("end", "share", "start") == "+15.0 (+10.0 to +20.0)"
    assert measured.gain("end", "unknown", "start") == measured.spread("end", "unknown") == "none"


def test_a_record_can_be_made_of_a_result(results):
    measured = SeedRecords.of(results, ["end"], lambda result: {"last": result.records[-1]["length"]})
    assert measured.values("end", "last") == [0.0, 1.0, 2.0]


def test_bars_are_means_with_ranges_and_a_run_without_all_seeds_has_none(results):
    figure, ((panel,),) = new_figure()
    seed_bars(panel, SeedRecords.of(results, SHARES), {"start": "Start", "end": "End"}, {"share": "shares"})
    (bar,) = panel.containers[1].patches
    assert bar.get_width() == pytest.approx(np.mean([0.6, 0.9, 0.8]))
    assert bar.get_y() < 1 < bar.get_y() + 2 * bar.get_height()  # beside the second run's place
    (error,) = panel.containers[0].get_children()[-1].get_segments()
    np.testing.assert_allclose(error[:, 0], (0.6, 0.9))
    assert [label.get_text() for label in panel.get_yticklabels()] == ["Start", "End"]
    assert figure is panel.figure


def test_a_run_has_a_curve_for_each_seed_and_one_entry_in_the_legend(results):
    _, ((panel,),) = new_figure()
    seed_curves(panel, results, "end", "length", label="End", style=":", color="k")
    lines = panel.get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[float(seed)] * 4 for seed in (0, 1, 2)]
    assert panel.get_legend_handles_labels()[1] == ["End"] and {line.get_linestyle() for line in lines} == {":"}
