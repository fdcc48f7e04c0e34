"""Muon against AdamW on the same data: tokens and seconds that Muon needs to reach AdamW's final validation loss.

Reproduces: the token-efficiency claim behind Kimi K2's choice of optimizer (Kimi K2, section 2.1; Moonlight reports
about half the training FLOPs at scale), on a small K2 architecture. Both optimizers see the same batches at the same
seed, with a constant learning rate after the warm-up. Each uses its best rate, which must lie inside its grid (searched
with the first seed). There are three seeds.
Expected: Muon needs clearly fewer tokens. The gain in seconds is smaller, because Newton-Schulz takes a large share of
the time at such a small batch.

    python -m k2jax.reproduce muon_vs_adamw --workdir=runs/muon_vs_adamw
"""

import numpy as np

from k2jax.config import defaults
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table, significant
from k2jax.reproduce import RunResult, Study, Summary, curve, final, seconds_at, spread

RATES = {"muonclip": (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2), "adamw": (1e-3, 2e-3, 4e-3)}
SEEDS = (0, 1, 2)
BEST = {"muonclip": 4e-3, "adamw": 2e-3}
"""Best rates of seed 0's grid, the only ones of the other seeds. The table would show another best rate."""
LABELS = {"muonclip": "MuonClip", "adamw": "AdamW"}


def get_config():
    """A narrow nano: half the width and half the experts, so that 12 runs take 20 minutes on two cores."""
    config = defaults("pretrain", model="nano")
    config.model.d_model = 128
    config.model.layers = 3
    config.model.dense_ffn = 512
    config.model.moe.expert_ffn = 64
    config.model.moe.experts = 16
    config.data.sequence_length = 256
    config.train.steps = 160
    config.train.batch_size = 8
    config.optimizer.schedule.kind = "constant"
    config.optimizer.schedule.warmup_steps = 20
    config.router.bias_rate = 5e-3
    config.eval.every = 10
    config.eval.rows = 32
    config.eval.final_rows = 64
    config.eval.sample_tokens = 0
    config.checkpoint.every = 160
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """Both grids with the first seed, the best rates with all seeds."""
    return {
        f"{name}_{rate:g}_seed{seed}": {
            "optimizer.name": name,
            "optimizer.learning_rate": rate,
            "train.seed": seed,
        }
        for seed in SEEDS
        for name, rates in RATES.items()
        for rate in (rates if seed == SEEDS[0] else (BEST[name],))
    }


def summarize(results: dict[str, RunResult]) -> Summary:
    """Finds the best rate of each optimizer by final validation loss of the first seed, and compares seed by seed."""
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
    """Result of the comparison in one sentence, or why it is not valid."""
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
    """Results by optimizer, learning rate and seed."""
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
    """Step at which the curve first reaches ``target``, interpolated between validations; infinity if never."""
    for i, loss in enumerate(losses):
        if loss <= target:
            if i == 0:
                return float(steps[0])
            share = (losses[i - 1] - target) / (losses[i - 1] - loss)
            return steps[i - 1] + share * (steps[i] - steps[i - 1])
    return float("inf")


def _figure(muon: dict[int, RunResult], adamw: dict[int, RunResult], best: dict[str, float]):
    """Curves by tokens and by time; a seed's time is told in runs of its AdamW, since seeds may share the machine."""
    figure, axes = new_figure(1, 2, height=3.8, sharey=True)
    for name, runs, color in (("muonclip", muon, PALETTE[0]), ("adamw", adamw, PALETTE[1])):
        for number, seed in enumerate(sorted(adamw.keys() & runs.keys())):
            run = runs[seed]
            steps, losses = curve(run, "val_loss")
            tokens = np.array(steps) * run.config.train.batch_size * run.config.data.sequence_length / 1e6
            label = f"{LABELS[name]}, rate {best[name]:g}" if number == 0 else None
            axes[0, 0].plot(tokens, losses, color=color, alpha=0.8, label=label)
            whole = seconds_at(adamw[seed], adamw[seed].config.train.steps)
            axes[0, 1].plot([seconds_at(run, step) / whole for step in steps], losses, color=color, alpha=0.8)
    style_axes(axes[0, 0], title="By tokens", x="tokens [millions]", y="validation loss [nats per token]")
    style_axes(axes[0, 1], title="By time", x="training time [AdamW's whole run of the same seed]")
    legend(axes[0, 0])
    return figure


STUDY = Study(get_config, runs, summarize)
