"""Sums up Muon against AdamW: tokens and seconds that Muon needs for AdamW's final validation loss."""

from __future__ import annotations

import numpy as np

from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table, significant
from k2jax.reproduce.study import RunResult, Summary, curve, final, seconds_at, spread

LABELS = {"muonclip": "MuonClip", "adamw": "AdamW"}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Best rate of each optimizer by final validation loss of the grid's seed, then the comparison seed by seed."""
    by_rate = _grids(results)
    first = min(result.config.train.seed for result in results.values())
    best = {name: min(rates, key=lambda rate: final(rates[rate][first], "val_loss")) for name, rates in by_rate.items()}
    grid = [
        (LABELS[name], f"{rate:g}", spread([final(run, "val_loss") for run in runs.values()]),
         "best" + ("" if min(rates) < rate < max(rates) else ", at the grid's edge") if rate == best[name] else "")
        for name, rates in by_rate.items()
        for rate, runs in rates.items()
    ]  # fmt: skip
    muon, adamw = (by_rate[name][best[name]] for name in ("muonclip", "adamw"))
    rows = [_compare(seed, muon[seed], adamw[seed]) for seed in sorted(adamw.keys() & muon.keys())]
    cells = [(seed, *(significant(value) for value in row)) for seed, *row in rows]
    header = ("seed", "AdamW final loss", "Muon final loss", "Muon's step there", "tokens ratio", "seconds ratio")
    steps = next(iter(results.values())).config.train.steps
    text = (
        f"{_verdict(by_rate, best, rows)}\n\n{markdown_table(header, cells)}\n"
        f"Validation loss after {steps} steps, mean (lowest to highest) over seeds:\n\n"
        f"{markdown_table(('optimizer', 'learning rate', 'final loss', ''), grid)}"
    )
    return Summary(text, _figure(muon, adamw, best))


def _verdict(by_rate: dict, best: dict[str, float], rows: list[tuple]) -> str:
    """What the comparison says, if it says anything."""
    edges = [LABELS[name] for name, rates in by_rate.items() if not min(rates) < best[name] < max(rates)]
    if edges:
        return f"Not a valid comparison: the best rate of {' and '.join(edges)} lies at the edge of its grid."
    tokens, seconds = ([row[i] for row in rows if np.isfinite(row[i])] for i in (4, 5))
    if not tokens:
        return "Muon never reaches AdamW's final validation loss."
    return (
        f"Muon reaches AdamW's final validation loss with {spread(tokens)} of its tokens and {spread(seconds)} of its "
        f"seconds (mean and range over {len(tokens)} of {len(rows)} seeds)."
    )


def _grids(results: dict[str, RunResult]) -> dict[str, dict[float, dict[int, RunResult]]]:
    grids: dict = {}
    for result in results.values():
        optimizer = result.config.optimizer
        seeds = grids.setdefault(optimizer.name, {}).setdefault(optimizer.learning_rate, {})
        seeds[result.config.train.seed] = result
    return grids


def _compare(seed: int, muon: RunResult, adamw: RunResult) -> tuple[int, float, float, float, float, float]:
    """(seed, AdamW's final loss, Muon's, the step at which Muon reaches AdamW's, ratios of tokens and of seconds)."""
    target, total = final(adamw, "val_loss"), adamw.config.train.steps
    step = _first_step_below(*curve(muon, "val_loss"), target)
    seconds = seconds_at(muon, 1) * step / seconds_at(adamw, total)
    return seed, target, final(muon, "val_loss"), step, step / total, seconds


def _first_step_below(steps: list[int], losses: list[float], target: float) -> float:
    """Where the curve first meets ``target``, between validations by linear interpolation; infinity if never."""
    for i, loss in enumerate(losses):
        if loss <= target:
            if i == 0:
                return float(steps[0])
            share = (losses[i - 1] - target) / (losses[i - 1] - loss)
            return steps[i - 1] + share * (steps[i] - steps[i - 1])
    return float("inf")


def _figure(muon: dict[int, RunResult], adamw: dict[int, RunResult], best: dict[str, float]):
    figure, axes = new_figure(1, 2, height=3.8, sharey=True)
    for name, runs, color in (("muonclip", muon, PALETTE[0]), ("adamw", adamw, PALETTE[1])):
        for number, run in enumerate(runs.values()):
            steps, losses = curve(run, "val_loss")
            tokens = np.array(steps) * run.config.train.batch_size * run.config.data.sequence_length / 1e6
            label = f"{LABELS[name]}, rate {best[name]:g}" if number == 0 else None
            axes[0, 0].plot(tokens, losses, color=color, alpha=0.8, label=label)
            axes[0, 1].plot([seconds_at(run, step) for step in steps], losses, color=color, alpha=0.8)
    style_axes(axes[0, 0], title="By tokens", x="tokens [millions]", y="validation loss [nats per token]")
    style_axes(axes[0, 1], title="By time", x="training time, compilation excluded [s]")
    legend(axes[0, 0])
    return figure
