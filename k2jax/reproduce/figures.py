"""Panels of studies whose runs have several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.reproduce.results import RunResult, curve
from k2jax.reproduce.seeds import SeedRecords, seeds_of

BAR = 0.38  # distance of the bars of a run; runs are 1 apart


def seed_curves(
    panel: Axes, results: Mapping[str, RunResult], run: str, metric: str, *, label: str, style: str = "-", **line: Any
) -> None:
    """Draws a metric along a run, a line for each seed, with one entry in the legend.

    Args:
        panel: where to draw.
        results: those of the study.
        run: name of the run without the seed.
        metric: key of the records.
        label: of the legend.
        style: of the lines.
        line: further properties of the lines, such as the color.
    """
    for number, seed in enumerate(seeds_of(results)):
        steps, values = curve(results[f"seed{seed}_{run}"], metric)
        panel.plot(steps, values, style, alpha=0.7, label=None if number else label, **line)


def seed_bars(
    panel: Axes,
    measured: SeedRecords,
    runs: Mapping[str, str],
    keys: Mapping[str, str],
    colors: Sequence[str] = PALETTE,
) -> None:
    """Draws shares of several runs as bars, the means over the seeds, with their ranges.

    A run without a value of every seed has no bar.

    Args:
        panel: where to draw; its x axis becomes that of shares, from 0 to 1.
        measured: the values.
        runs: labels of the runs, from top to bottom, by name.
        keys: labels of two values of each run for the legend, by key.
        colors: of the values.
    """
    for place, (key, label) in enumerate(keys.items()):
        values = {row: measured.values(run, key) for row, run in enumerate(runs)}
        complete = {row: of_seeds for row, of_seeds in values.items() if None not in of_seeds}
        values_RS = np.array(list(complete.values()), float).reshape(len(complete), len(measured.seeds))
        means_R = values_RS.mean(1)
        errors = np.abs((means_R - values_RS.min(1), values_RS.max(1) - means_R))
        at = np.array(list(complete), float) + BAR * (place - 0.5)
        panel.barh(at, means_R, 0.36, xerr=errors, color=colors[place], label=label)
    panel.set_yticks(range(len(runs)), list(runs.values()))
    panel.invert_yaxis()
    panel.set_xlim(0, 1)


def success_figure(
    results: Mapping[str, RunResult],
    measured: SeedRecords,
    runs: Mapping[str, str],
    ways: Mapping[str, str],
    *,
    what: str,
    title: str = "Sampled episodes of training that are right",
) -> Figure:
    """What is right in the trainings ``rl`` and ``rl_workers``, and held-out success of several runs as bars.

    Args:
        results: those of the study.
        measured: its evaluations.
        runs: labels of the runs, from top to bottom, by name.
        ways: labels of two shares of each run, by key.
        what: what an episode solves, in the plural.
        title: of the training's panel.
    """
    figure, axes = new_figure(1, 2, height=4.0)
    for run, color in (("rl", PALETTE[0]), ("rl_workers", PALETTE[2])):
        seed_curves(axes[0, 0], results, run, "accuracy", label=runs[run], color=color)
    style_axes(axes[0, 0], title=title, x="iteration", y="share")
    axes[0, 0].set_ylim(0, 1.02)
    legend(axes[0, 0])
    seed_bars(axes[0, 1], measured, runs, ways)
    style_axes(axes[0, 1], title="Held-out success", x=f"share of {what}, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure
