"""Plots: real pictures of the right size, from whatever a run happens to have logged."""

from pathlib import Path
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
import matplotlib.image
import numpy as np
import pytest

from k2jax.report import figures
from k2jax.report.figures import learning_rate_figure
from k2jax.report.metrics import MetricsLog
from k2jax.report.plots import draw_plots
from k2jax.report.policy_figures import accuracy_figure, drift_figure, responses_figure, swarm_figure
from k2jax.report.series import scalars, series, smooth, thin
from k2jax.report.style import edges, save_figure
from k2jax.report.summary import Baselines
from tests.report.synthetic import records

BASELINES = Baselines(unigram_entropy=4.78, gzip=1.93, xz=1.62)
NAMES = ["loss", "max_logit", "expert_load", "learning_rate", "throughput"]
FUNCTIONS = [getattr(figures, f"{name}_figure") for name in NAMES]


def log(workdir: Path, lines: list[dict]) -> None:
    with MetricsLog(workdir, resume_step=0, tensorboard=False) as metrics:
        for line in lines:
            metrics.write(line["step"], {key: value for key, value in line.items() if key != "step"})


def titles(figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible() and axes.get_title(loc="left")]


def test_a_run_gives_five_pictures(tmp_path):
    log(tmp_path, records())
    paths = draw_plots(tmp_path, baselines=BASELINES, qk_clip_tau=100.0)
    assert [path.name for path in paths] == [f"{name}.png" for name in NAMES]
    for path in paths:
        image = matplotlib.image.imread(path)
        assert image.shape[1] >= 900
        assert 0.01 < np.mean(np.any(image[..., :3] < 0.95, axis=-1)) < 0.9, f"{path.name} is blank or full"
    assert matplotlib.image.imread(paths[0]).shape[:2] == (480, 1344)
    assert [p.name for p in (tmp_path / "plots").iterdir() if p.suffix != ".png"] == []
    assert "matplotlib.pyplot" not in sys.modules or matplotlib.pyplot.get_fignums() == []


def test_no_metrics_no_pictures(tmp_path):
    assert draw_plots(tmp_path) == []
    log(tmp_path, [{"step": 1}])
    assert draw_plots(tmp_path) == []


def test_yardsticks_and_threshold_are_named_in_the_picture():
    loss = figures.loss_figure(records(), BASELINES)
    texts = [text.get_text() for text in loss.axes[1].texts]
    assert {"unigram byte entropy 4.78", "gzip -9 1.93", "xz 1.62"} == set(texts)
    assert titles(loss)[1] == "Held-out text, 1.380 at the end"
    near = figures.max_logit_figure(records(), 100.0)
    assert [text.get_text() for text in near.axes[0].texts] == ["QK-Clip τ = 100"]
    far = figures.max_logit_figure(records(), 10000.0)
    assert [text.get_text() for text in far.axes[0].texts] == ["QK-Clip τ = 10000 (above)"]
    assert far.axes[0].get_ylim()[1] < 1000


def test_panels_without_data_are_left_out():
    lines = [{key: r[key] for key in ("step", "loss", "grad_norm")} for r in records(5)]
    assert titles(figures.loss_figure(lines)) == ["Loss"]
    assert titles(figures.learning_rate_figure(lines)) == ["Gradient norm before clipping"]
    assert (
        figures.throughput_figure(lines) is figures.max_logit_figure(lines) is figures.expert_load_figure(lines) is None
    )


def test_few_layers_get_a_panel_each_and_many_a_heat_map():
    few = figures.max_logit_figure(records())
    assert titles(few) == [f"Layer {layer}" for layer in range(4)]
    assert [len(axes.lines) for axes in few.axes] == [4] * 4
    many = figures.max_logit_figure(records(30, layers=61, heads=64))
    assert titles(many)[0] == "Largest attention logit of each layer (over its heads)"
    assert many.axes[0].collections[0].get_array().shape == (61, 3)
    few, many = figures.expert_load_figure(records()), figures.expert_load_figure(records(20, moe=60, experts=384))
    assert [axes.collections[0].get_array().shape for axes in few.axes[:3]] == [(8, 12)] * 3
    assert many.axes[0].collections[0].get_array().shape == (60, 384)


def test_the_heat_map_shows_load_relative_to_the_mean():
    figure = figures.expert_load_figure([{"step": 1, "expert_tokens": [[0, 10, 20, 10]]}])
    np.testing.assert_allclose(figure.axes[0].collections[0].get_array()[:, 0], [0, 1, 2, 1])


numbers = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-10, 10))
junk = st.one_of(numbers, st.lists(numbers, max_size=3), st.lists(st.lists(numbers, max_size=3), max_size=8))
KEYS = [*records(40)[-1]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, junk)), max_size=4))
def test_no_record_crashes_a_picture(lines):
    for function in FUNCTIONS:
        figure = function([{**line, "step": step} for step, line in enumerate(lines)])
        if figure is not None:
            figure.set_layout_engine("none")  # the slow part, and not what could fail
            figure.draw_without_rendering()


def test_a_spike_does_not_flatten_the_loss():
    lines = records()
    lines[60]["loss"] = 1e4
    assert figures.loss_figure(lines).axes[0].get_ylim()[1] < 20


def test_the_running_median_follows_a_line_and_ignores_a_spike_and_nan():
    line = np.arange(800.0)
    spoiled = line.copy()
    spoiled[400], spoiled[500] = 1e6, np.nan
    smoothed = smooth(spoiled)
    np.testing.assert_allclose(smoothed[10:-10], line[10:-10], atol=1.0)
    np.testing.assert_allclose(smoothed, line, atol=3.0)
    assert np.isnan(smooth(np.full(200, np.nan))).all()


def test_series_keep_null_as_nan_and_drop_other_shapes():
    lines = [{"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 3}, {"step": 4, "a": 2.0}]
    steps, values = scalars(lines, "a")
    np.testing.assert_array_equal(steps, [1, 2, 4])
    np.testing.assert_array_equal(values, [1.0, np.nan, 2.0])
    steps, values = series([{"step": 1, "a": [1, 2, 3]}, {"step": 2, "a": [1, 2]}], "a")
    assert (steps.tolist(), values.tolist()) == ([2.0], [[1.0, 2.0]])
    assert scalars([{"step": 1, "a": None}], "a") is None


@given(st.integers(1, 20000))
def test_thinning_keeps_the_last_point_and_the_limit(count):
    steps, _ = thin(np.arange(count), np.arange(count), 500)
    assert len(steps) <= 500
    assert steps[-1] == count - 1


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True))
def test_cells_of_a_heat_map_contain_their_positions(positions):
    centres = np.array(sorted(positions), float)
    bounds = edges(centres)
    assert len(bounds) == len(centres) + 1
    assert (bounds[:-1] < centres).all() and (centres < bounds[1:]).all()


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    path = save_figure(figures.loss_figure(records(3)), tmp_path / "loss.png")
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_figure(figures.loss_figure(records(30)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_responses_show_their_longest_and_other_curves_mark_what_their_axis_leaves_out():
    records = [
        {"step": step, "reward": 0.1, "length": 100.0 + 300 * (step == 10), "grad_norm": 1.0 + 9 * (step == 10)}
        for step in range(1, 31)
    ]
    (axes,) = responses_figure(records).axes
    assert axes.get_ylim()[1] >= 400 and not axes.texts
    (axes,) = learning_rate_figure(records).axes
    assert axes.get_ylim()[1] < 10
    (mark,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert list(mark.get_xdata()) == [10] and [text.get_text() for text in axes.texts] == ["10"]


@pytest.mark.parametrize("figure", [accuracy_figure, responses_figure, drift_figure, swarm_figure])
def test_no_tick_lies_between_two_iterations_and_no_value_above_the_axis(figure):
    keys = ("reward", "eval/greedy", "length", "tokens/kl", "swarm/parallelism", "swarm/peak")
    drawn = figure([{"step": step, **dict.fromkeys(keys, 1.5)} for step in range(4)])
    drawn.canvas.draw()
    for axes in drawn.axes:
        assert all(
            float(label.get_text().replace("\N{MINUS SIGN}", "-")).is_integer() for label in axes.get_xticklabels()
        )
        assert axes.get_ylim()[1] >= 1.5


def test_agents_are_drawn_as_accuracy_above_parallelism_and_what_it_is_made_of():
    steps = {"swarm/total_steps": 12.0, "swarm/critical_steps": 6.0, "swarm/assigned": 3.0, "swarm/finish_weight": 0.0}
    lines = [{"step": step, "reward": 0.5, "swarm/parallelism": 2.0 + step, **steps} for step in range(3)]
    figure = swarm_figure(lines)
    panels = ["Steps of an episode", "Sub-agents of an episode", "Weights of these terms"]
    assert titles(figure) == ["Reward and accuracy", "Parallelism", *panels]
    assert list(figure.axes[1].lines[0].get_ydata()) == [2.0, 3.0, 4.0] and figure.axes[1].get_ylim()[0] == 0
    assert [line.get_label() for line in figure.axes[2].lines] == ["total steps", "critical steps"]
    scored = swarm_figure([line | {"swarm/score": 0.25, "eval/swarm/parallelism": 5.0} for line in lines])
    assert set(scored.axes[0].lines[0].get_ydata()) == {0.25}, "without the terms of sub-agents"
    assert scored.axes[1].get_ylim()[1] > 5
    assert swarm_figure([{"step": 1, "reward": 0.5}]) is None
