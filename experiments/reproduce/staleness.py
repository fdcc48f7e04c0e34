"""How old the weights may be that have sampled what is trained on, where engines generate while the trainer updates.

Reproduces: overlapped generation and training with a bound of staleness (Kimi K2, section 3.3; KAT-Coder-V2, section
3.3.2) at the scale of a laptop, and IcePop as a remedy for old samples. The model, the tasks and the start are those of
``nano_post_training``, whose finished runs are used where the workdir is the same. An engine in a process of its own
generates while the trainer updates, and runs ahead as far as the bound lets it, so that a larger bound gives older
samples. Beside these runs stands the one whose engine lies on the trainer's devices.
Expected: no loss of accuracy beyond the spread of seeds at these bounds, and a distance between engine and trainer that
grows with them (docs/reproductions.md).

    python -m k2jax.reproduce staleness --workdir=runs/nano_post_training
"""

import numpy as np

from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, curve
from k2jax.reproduce.figures import seed_bars
from k2jax.reproduce.seeds import SeedRecords, for_seeds, seeds_of
from k2jax.reproduce.study_file import load_study_file

base = load_study_file("nano_post_training")
get_config, prepare, evaluate, held_out_configs = base.get_config, base.prepare, base.evaluate, base.held_out_configs
SHARED = ("pretrained", "sft", "rl_k2.5")
BOUNDS = (0, 1, 4)
ICEPOP = {"rl.loss.icepop.on": True, "rl.loss.old": "recompute"}  # it compares the trainer with the engine
LABELS = {
    "sft": "SFT, the start",
    "rl_k2.5": "RL, engine on the trainer's devices",
    **{f"rl_stale{bound}": f"RL, at most {bound} versions old" for bound in BOUNDS},
    f"rl_stale{BOUNDS[-1]}_icepop": f"RL, at most {BOUNDS[-1]} versions old, IcePop",
}
SEPARATE = [name for name in LABELS if name.startswith("rl_stale")]
ACCURACY = {"eval/greedy": "greedy", "eval/avg@8": "Avg@8", "eval/pass@8": "pass@8"}
COLUMNS = {"staleness": ("versions old", 2), "stale": ("groups dropped as stale", 4)}
COLUMNS |= {"clipped": ("clipped", 4), "mismatch": ("apart [nats a token]", 5)}
SMOOTH = 5  #: iterations over which curves are averaged


def separate(bound: int) -> dict:
    """Overrides of a run whose samples are at most ``bound`` versions old."""
    return {
        "rl.rollout.sampler": "workers",
        "rl.rollout.look_ahead": bound + 1,
        "rl.rollout.offload_state": False,
        "rl.engines.placement": "separate",
        "rl.max_staleness": bound,
    }


def runs():
    """The chain of each seed to the run with a colocated engine, then a run with each bound."""
    return for_seeds(base.SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    chain = base.chain(seed)
    bounded = {f"rl_stale{bound}": chain["rl_k2.5"] | separate(bound) for bound in BOUNDS}
    with_icepop = {f"rl_stale{BOUNDS[-1]}_icepop": bounded[f"rl_stale{BOUNDS[-1]}"] | ICEPOP}
    return {name: chain[name] for name in SHARED} | bounded | with_icepop


def summarize(results: dict[str, RunResult]) -> Summary:
    """Accuracy of every bound, how old samples were, and how many were dropped."""
    measured = SeedRecords.of(results, LABELS)
    during = SeedRecords.of(results, ["rl_k2.5", *SEPARATE], _statistics)
    rows = [
        (label, *(measured.spread(run, key) for key in ACCURACY),
         *(during.spread(run, key, digits) if run in during.runs else "" for key, (_, digits) in COLUMNS.items()))
        for run, label in LABELS.items()
    ]  # fmt: skip
    header = ("run", *ACCURACY.values(), *(title for title, _ in COLUMNS.values()))
    text = (
        f"{markdown_table(header, rows)}\n1,000 held-out problems; mean (lowest to highest) over {len(measured.seeds)} "
        "seeds. Versions old is the mean over sampled tokens and iterations, of samples when they are trained on.\n"
    )
    return Summary(text, _figure(results, measured))


def _statistics(result: RunResult) -> dict[str, float]:
    """Means over the iterations of a run; without what it does not report."""
    keys = {"staleness": "staleness", "stale": "window/stale"}
    keys |= {"clipped": "policy/clipped", "mismatch": "tokens/mismatch"}
    found = {name: values for name, key in keys.items() if (values := curve(result, key)[1])}
    return {name: float(np.mean(values)) for name, values in found.items()}


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(2, 2, height=7.4)
    for run, color in zip(("rl_k2.5", *SEPARATE), PALETTE, strict=False):
        for panel, metric in ((axes[0, 0], "accuracy"), (axes[0, 1], "staleness")):
            panel.plot(*_mean_curve(results, run, metric), color=color, label=LABELS[run])
    style_axes(axes[0, 0], title="Sampled responses that are right", x="iteration", y=f"share, mean of {SMOOTH}")
    style_axes(axes[0, 1], title="How old samples are", x="iteration", y=f"versions, mean of {SMOOTH}")
    axes[0, 0].set_ylim(0.35, 1)  # the legend lies under the curves
    legend(axes[0, 0], loc="lower right")
    axes[1, 1].remove()
    bars = axes[1, 0]
    bars.set_subplotspec(axes[1, 0].get_gridspec()[1, :])
    seed_bars(bars, measured, LABELS, {"eval/greedy": "greedy", "eval/avg@8": "Avg@8"})
    style_axes(bars, title="Held-out accuracy", x="share of problems, mean and range of seeds")
    bars.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


def _mean_curve(results: dict[str, RunResult], run: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric along a run, the mean over seeds and over ``SMOOTH`` iterations."""
    seeds = [curve(results[f"seed{seed}_{run}"], metric) for seed in seeds_of(results)]
    values = np.convolve(np.mean([values for _, values in seeds], 0), np.ones(SMOOTH) / SMOOTH, "valid")
    return np.array(seeds[0][0][SMOOTH - 1 :]), values


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
