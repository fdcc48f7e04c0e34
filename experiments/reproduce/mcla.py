"""Averaging the old log-probabilities over several forward passes while the choice of experts is noisy.

Reproduces: MCLA (KAT-Coder-V2, section 3.3.1, equation 11), IcePop and routing replay against noise of the router, at
the scale of a laptop. On a CPU equal passes are equal, so the noise is injected: in sampling, scoring and training each
place of a batch adds numbers of its own to the scores by which experts are chosen. A token that lies elsewhere, in
another pass or in the engine, therefore meets other experts. log pi_old is the mean of M passes of different packing.
Scoring has noise of its own: else a single pass, whose rows lie as in the update, would be an exact one. Every M is run
as it is; with IcePop, which leaves out tokens on which trainer and engine differ by far; and with routing replay, which
takes the experts of the sampling and so the noise itself away. The start is a short fine-tuning by a teacher who
answers half of the problems without working.
Expected: a larger M clips fewer tokens, about half as many with 8 passes as with one. The spread of the norm of the
gradient, which the claim is about, does not fall beyond the spread of seeds; nothing is learnt (docs/reproductions.md).

    python -m k2jax.reproduce mcla --workdir=runs/mcla
"""

from itertools import product
from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import source, task
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, curve, relative_spread
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.tasks.characters.teacher import demonstrations

SEEDS = (0, 1, 2)
KINDS, COUNT, DIRECT = "add2+sort4", 6000, 0.5  # problems, and the share of the teacher's answers without working
SFT_STEPS, ITERATIONS = 240, 200
WAYS = {"plain": "as it is", "icepop": "with IcePop", "replay": "with routing replay"}
PASSES = (1, 2, 4, 8)
RUNS = list(product(WAYS, PASSES))
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
RL = BY_REWARDS | {
    "train.steps": ITERATIONS,
    "train.batch_size": 4,
    "optimizer.learning_rate": 5e-4,
    "checkpoint.every": 100,
    "rl.loss.old": "recompute",
}


def get_config():
    """The model, the data and the tasks that all runs share; short problems, so that an iteration costs little."""
    config = micro_config("sft", SFT_STEPS)
    config.model.update({"d_model": 64, "dense_ffn": 192})  # the cost of Muon's updates, which dominate, is cubic
    config.model.moe.expert_ffn = 32
    config.data.sources = {"text": source(kind="chat")}
    config.data.sequence_length = 128
    config.eval.every = SFT_STEPS
    options = (f"kinds={KINDS}", f"count={COUNT}")
    config.rl.tasks = {"problems": task(dataset="characters", options=options, max_tokens=24)}
    config.rl.rollout.update({"prompts": 8, "slots": 64, "max_length": 48})
    config.rl.updates = 2
    config.rl.eval_prompts = 0
    return config


def prepare(workdir: Path):
    """Writes the demonstrations of an imperfect teacher."""
    problems = load_tasks("characters", (f"kinds={KINDS}", f"count={COUNT}"))
    write_data(workdir, {"text.jsonl": demonstrations(problems, direct=DIRECT)})


def runs():
    """The start of each seed, then every number of passes in every way."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    text = {"data.sources.text.path": "{workdir}/text.jsonl"}
    from_start = RL | text | {"init_from": f"{{workdir}}/seed{seed}_sft"}
    averaged = {
        _name(way, passes): from_start | SETTINGS[way] | {"rl.loss.mcla.passes": passes} for way, passes in RUNS
    }
    return {"sft": text} | averaged


def _name(way: str, passes: int) -> str:
    return f"{way}_m{passes}"


def selection_noise(shape: tuple[int, ...], scoring: bool) -> np.ndarray:
    """What each place of a batch adds to the scores by which experts are chosen; a scoring pass has its own."""
    return np.random.default_rng(int(scoring)).normal(size=shape, scale=NOISE).astype(np.float32)


def summarize(results: dict[str, RunResult]) -> Summary:
    """Spread of the gradient's norm and shares of tokens, by number of passes and way."""
    measured = SeedRecords.of(results, [_name(*run) for run in RUNS], _statistics)
    rows = [
        (WAYS[way], passes, *(measured.spread(_name(way, passes), key, digits) for key, (_, digits) in COLUMNS.items()))
        for way, passes in RUNS
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
    statistics = {
        "spread": relative_spread(norms, WINDOW),
        "highest": max(float(max(window) / np.median(window)) for window in windows),
    }
    means = {"clipped": "policy/clipped", "zeroed": "tokens/zeroed", "mismatch": "tokens/mismatch"}
    for name, metric in (means | {"mcla_std": "mcla_std"}).items():
        if values := curve(result, metric)[1]:
            statistics[name] = float(np.mean(values))
    return statistics | {"accuracy": float(np.mean(curve(result, "accuracy")[1][-WINDOW:]))}


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


STUDY = Study(get_config, runs, summarize, prepare=prepare, selection_noise=selection_noise)
