"""Averaging the old log-probabilities over several forward passes while the choice of experts is noisy.

Reproduces: MCLA (KAT-Coder-V2, section 3.3.1, equation 11), IcePop and routing replay against noise of the router, at
the scale of a laptop. On a CPU equal passes are equal, so the noise is injected: in sampling, scoring and training each
place of a batch adds numbers of its own to the scores by which experts are chosen. A token that lies elsewhere, in
another pass or in the engine, therefore meets other experts. log pi_old is the mean of M passes of different packing.
Every M is run as it is; with IcePop, which leaves out tokens on which trainer and engine differ by far; and with
routing replay, which takes the experts of the sampling and so the noise itself away. The model, the tasks and the start
are those of ``nano_post_training``, whose finished runs are used where the workdir is the same.
Expected: not measured yet. The reports' claim is that the norm of the gradient spreads less with a larger M.

    python -m k2jax.reproduce mcla --workdir=runs/nano_post_training
"""

import contextlib
from itertools import product

import numpy as np

from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Summary, curve, relative_spread
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.loading import load_study
from k2jax.reproduce.seeds import SeedRecords, for_seeds

base = load_study("nano_post_training")
prepare = base.prepare

PASSES = (1, 2, 4, 8)
WAYS = {"plain": "as it is", "icepop": "with IcePop", "replay": "with routing replay"}
SETTINGS = {
    "plain": {},
    "icepop": {"rl.loss.icepop.on": True},
    "replay": {"rl.rollout.routing": "replay"},
}
NOISE = 0.05  # standard deviation of what is added to scores, which are between 0 and 1; 0.02 moves few tokens by much
WINDOW = 20  # iterations within which the spread is measured, so that a trend is no spread
COLUMNS = {"spread": ("spread of the gradient's norm", 3), "highest": ("highest over median", 2)}
COLUMNS |= {"clipped": ("clipped", 5), "zeroed": ("zeroed", 5), "mismatch": ("trainer and engine apart [nats]", 4)}
COLUMNS |= {"mcla_std": ("passes apart [nats]", 4), "accuracy": ("right, last iterations", 3)}
RL = base.RL | {
    "train.steps": 200,
    "optimizer.learning_rate": 5e-4,
    "rl.rollout.prompts": 16,
    "rl.loss.old": "recompute",
    "rl.eval_prompts": 0,
}


def get_config():
    """The model, the data and the tasks of ``nano_post_training``."""
    return base.get_config()


def runs():
    """For each seed the start, then every number of passes in every way."""
    return for_seeds(base.SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    chain = base.chain(seed)
    from_start = RL | {"init_from": chain["rl_k2.5"]["init_from"]}
    averaged = {
        _name(way, passes): from_start | SETTINGS[way] | {"rl.loss.mcla.passes": passes}
        for way, passes in product(WAYS, PASSES)
    }
    return {name: chain[name] for name in ("pretrained", "sft")} | averaged


def _name(way: str, passes: int) -> str:
    return f"{way}_m{passes}"


@contextlib.contextmanager
def around(config):
    """Noise in the router of everything that a run of reinforcement learning compiles."""
    import jax

    from k2jax.model import feed_forward

    exact = feed_forward.route

    def noisy(weight, bias, x, real, *more):
        noise_BSE = np.random.default_rng(0).normal(size=(*real.shape, len(bias)), scale=NOISE).astype(np.float32)
        return exact(weight, bias + noise_BSE, x, real, *more)

    if config.stage != "rl":
        yield
        return
    jax.clear_caches()  # what an earlier run compiled without the noise, or with it
    feed_forward.route = noisy
    try:
        yield
    finally:
        feed_forward.route = exact
        jax.clear_caches()


def summarize(results: dict[str, RunResult]) -> Summary:
    """Spread of the gradient's norm and shares of tokens, by number of passes and way."""
    measured = SeedRecords.of(results, [_name(*pair) for pair in product(WAYS, PASSES)], _statistics)
    rows = [
        (WAYS[way], passes, *(measured.spread(_name(way, passes), key, digits) for key, (_, digits) in COLUMNS.items()))
        for way, passes in product(WAYS, PASSES)
    ]
    falls = [f"{_falls(measured, way)} of {len(measured.seeds)} {label}" for way, label in WAYS.items()]
    steps = max(len(result.records) for result in results.values() if result.config.stage == "rl")
    text = (
        f"From M = {PASSES[0]} to M = {PASSES[-1]} the spread of the gradient's norm falls on {', '.join(falls)} "
        f"(seeds, by way).\n\n{markdown_table(('run', 'M', *(title for title, _ in COLUMNS.values())), rows)}\n"
        f"Mean (lowest to highest) over {len(measured.seeds)} seeds of {steps} iterations. Spread: standard deviation "
        f"over mean within {WINDOW} iterations, averaged. Clipped and zeroed are shares of tokens; passes are apart by "
        f"the standard deviation across them. Noise of {NOISE} on the scores by which experts are chosen.\n"
    )
    return Summary(text, _figure(results, measured))


def _statistics(result: RunResult) -> dict[str, float]:
    """What the table says of a run; without a column that the run does not report."""
    norms = curve(result, "grad_norm")[1]
    if not norms:
        return {}
    windows = np.array_split(norms, max(1, len(norms) // WINDOW))
    found = {
        "spread": relative_spread(norms, WINDOW),
        "highest": max(float(max(window) / np.median(window)) for window in windows),
    }
    means = {"clipped": "policy/clipped", "zeroed": "tokens/zeroed", "mismatch": "tokens/mismatch"}
    for name, metric in (means | {"mcla_std": "mcla_std"}).items():
        if values := curve(result, metric)[1]:
            found[name] = float(np.mean(values))
    return found | {"accuracy": float(np.mean(curve(result, "accuracy")[1][-WINDOW:]))}


def _falls(measured: SeedRecords, way: str) -> int:
    """Seeds on which the largest M has the smaller spread than the smallest."""
    ends = (measured.values(_name(way, passes), "spread") for passes in (PASSES[0], PASSES[-1]))
    return sum(None not in pair and pair[1] < pair[0] for pair in zip(*ends, strict=True))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(2, 2, height=7.0)
    for color, passes in ((PALETTE[0], PASSES[0]), (PALETTE[1], PASSES[-1])):
        line = {"label": f"M = {passes}", "color": color, "linewidth": 1}
        seed_curves(axes[0, 0], results, _name("plain", passes), "grad_norm", **line)
    style_axes(axes[0, 0], title="Norm of the gradient, without IcePop and replay", x="iteration", y="norm")
    legend(axes[0, 0])
    panels = {
        "spread": (axes[0, 1], "Spread of the gradient's norm", "standard deviation over mean"),
        "clipped": (axes[1, 0], "Clipped tokens", "share"),
        "mismatch": (axes[1, 1], "Trainer and engine apart", "nats per token"),
    }
    for key, (panel, title, unit) in panels.items():
        for color, (way, label) in zip(PALETTE, WAYS.items(), strict=False):
            values_MN = [measured.values(_name(way, passes), key) for passes in PASSES]
            for number, of_seed in enumerate(zip(*values_MN, strict=True)):
                values = [np.nan if value is None else value for value in of_seed]
                panel.plot(PASSES, values, "o-", color=color, alpha=0.7, label=None if number else label)
        panel.set_xscale("log", base=2)
        panel.set_xticks(PASSES, PASSES)
        style_axes(panel, title=title, x="passes M", y=unit)
        legend(panel)
    return figure
