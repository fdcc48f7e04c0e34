"""Toggle cuts the length of responses: the same reinforcement learning with and without it.

Reproduces: phases of a budget that the initial policy sets, in alternation with plain reinforcement learning (Kimi
K2.5, section 4.4 and equation 2), at the scale of a laptop. A teacher adds numbers of three digits digit by digit, and
then checks its sums by subtracting, once or twice, in four solutions of five. Such a check never changes the answer, so
that a model of its demonstrations is as often right with as without checks: whether P(right | length) is flat at the
start is measured first. Reinforcement learning without Toggle then has no reason to shorten anything. Nothing in the
data is filler: every token is a step of a working or of a check.
Expected: with Toggle responses of at least 25 % fewer tokens, at an accuracy that is not lower by more than 1 point and
2 standard errors, on 2,000 held-out problems.

    python -m k2jax.reproduce toggle --workdir=runs/toggle
"""

import itertools
import math
from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table, percent
from k2jax.reproduce import RunResult, Study, Summary, spread
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.tasks.characters.teacher import checked_demonstrations

SEEDS = (0, 1, 2)
KIND = "add3"
DEMONSTRATIONS = 24_000
CHECKS = (0.2, 0.4, 0.4)  # shares of solutions with no check, one and two
PROMPTS = 512  # of reinforcement learning, each of which has a budget
HELD_OUT, SAMPLES = 2000, 2
SFT_STEPS, ITERATIONS, PERIOD = 480, 60, 5
EDGES = (0, 34, 57, 97)  # solutions without a check take 22 to 30 tokens, with one 40 to 55, with two 58 to 80
BIN, FEW = 4, 20  # tokens of a bar, and the samples below which its share is not drawn
MIN_CUT, MAX_LOSS = 0.25, 0.01
LABELS = {"sft": "SFT, the start", "rl": "RL without Toggle", "toggle": "RL with Toggle"}
COLORS = {"sft": PALETTE[5], "rl": PALETTE[0], "toggle": PALETTE[1]}
MEASURES = {"sampled": ("eval/avg@2", "tokens"), "greedy": ("eval/greedy", "eval/length")}  # accuracy, tokens
HEADER = ("seed", "responses", "tokens without", "tokens with", "cut", "right without", "right with",
          "lowest allowed", "target met")  # fmt: skip
BUCKETS = [f"{low} to {end - 1} tokens" for low, end in itertools.pairwise(EDGES)]
FLAT_HEADER = ("seed", *BUCKETS, "largest difference")
RL = BY_REWARDS | {"train.steps": ITERATIONS, "optimizer.learning_rate": 5e-4}
TOGGLE = {"rl.toggle.period": PERIOD, "rl.toggle.accuracy": 0.75, "rl.toggle.percentile": 25.0}


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = micro_config("sft", SFT_STEPS)
    config.data.sources = {"text": source(kind="chat", path="{workdir}/demonstrations.jsonl")}
    config.eval.every = 80
    config.rl.tasks = {"sums": task(dataset="characters", options=_options(PROMPTS), max_tokens=EDGES[-1] - 1)}
    config.rl.rollout.update({"prompts": 32, "max_length": 112})
    config.rl.updates, config.rl.eval_prompts = 2, 0
    return config


def held_out_configs():
    """The configuration of the evaluation: other problems, and more of them, than those of the runs."""
    config = get_config()
    config.rl.tasks.sums.options = _options(HELD_OUT)
    config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
    return [config]


def _options(count: int) -> tuple[str, str]:
    return f"kinds={KIND}", f"count={count}"


def prepare(workdir: Path):
    """Writes the demonstrations."""
    problems = load_tasks("characters", _options(DEMONSTRATIONS))
    write_data(workdir, {"demonstrations.jsonl": checked_demonstrations(problems, CHECKS)})


def runs():
    """The start of each seed, and both runs from it."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    data = {"data.sources.text.path": "{workdir}/demonstrations.jsonl"}
    from_start = RL | data | {"init_from": f"{{workdir}}/seed{seed}_sft"}
    return {"sft": data, "rl": from_start, "toggle": from_start | TOGGLE}


def evaluate(config, workdir):
    """Accuracy and tokens on held-out problems, greedy and sampled, and how many samples of each length are right."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(*held_out_configs()), str(workdir))
    record = held_out.record(groups)
    right, lengths = [], []
    for group in groups:
        scored = [sample for sample in range(1, 1 + SAMPLES) if group.trajectories[sample].reward is not None]
        right += [held_out.is_right(group, sample) for sample in scored]
        lengths += [group.trajectories[sample].sampled_tokens for sample in scored]
    bars = range(0, EDGES[-1] + BIN, BIN)
    right, lengths = np.array(right, bool), np.array(lengths)
    for name, chosen in (("right", lengths[right]), ("wrong", lengths[~right])):
        record[f"tokens_{name}"] = np.histogram(chosen, bars)[0].tolist()
        record[f"bucket_{name}"] = np.histogram(chosen, EDGES)[0].tolist()
    return record | {"tokens": float(np.mean(lengths)), "problems": len(groups)}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Whether the start is flat; then tokens and accuracy of both runs, seed by seed."""
    measured = SeedRecords.of(results, LABELS)
    seeds, records = measured.seeds, measured.runs
    rows, holds = [], 0
    for seed, without, with_it in zip(seeds, records["rl"], records["toggle"], strict=True):
        compared = {name: _compared(without, with_it, *keys) for name, keys in MEASURES.items()}
        holds += all(is_met for *_, is_met in compared.values())
        rows += [(seed, name, *cells, "yes" if is_met else "no") for name, (*cells, is_met) in compared.items()]
    problems = min(each["problems"] for each in records["toggle"])
    text = (
        f"Toggle cuts the tokens of sampled responses by {_cuts(records, 'tokens')} and of greedy ones by "
        f"{_cuts(records, 'eval/length')}. Both cuts are at least {percent(MIN_CUT, 2)} at an accuracy that is not "
        f"lower by more than {100 * MAX_LOSS:.0f} point and 2 standard errors on {holds} of {len(seeds)} seeds.\n\n"
        f"{markdown_table(HEADER, rows)}\n{problems:,} held-out problems. The start was right with "
        f"{measured.spread('sft', 'eval/avg@2')} of its samples, of {measured.spread('sft', 'tokens', 1)} tokens. How "
        f"often, by their length:\n\n{markdown_table(FLAT_HEADER, _flatness(records['sft'], seeds))}\n"
    )
    return Summary(text, _figure(results, records, seeds))


def _compared(without: dict, with_it: dict, accuracy: str, tokens: str) -> tuple:
    """Cells of a row, and whether the target is met."""
    cut = 1 - with_it[tokens] / without[tokens]
    intervals = [each[f"{accuracy}/high"] - each[f"{accuracy}/low"] for each in (without, with_it)]
    error = math.hypot(*(interval / 2 / 1.96 for interval in intervals))
    lowest = without[accuracy] - MAX_LOSS - 2 * error
    met = cut >= MIN_CUT and with_it[accuracy] >= lowest
    numbers = (without[accuracy], with_it[accuracy], lowest)
    return f"{without[tokens]:.1f}", f"{with_it[tokens]:.1f}", percent(cut), *(f"{n:.4f}" for n in numbers), met


def _cuts(records: dict, tokens: str) -> str:
    pairs = zip(records["rl"], records["toggle"], strict=True)
    return spread([100 * (1 - with_it[tokens] / without[tokens]) for without, with_it in pairs], 1) + " %"


def _shares(evaluation: dict, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The share of right samples by their length, NaN of fewer than ``FEW``, and its standard error."""
    right, wrong = (np.array(evaluation[f"{name}_{kind}"], float) for kind in ("right", "wrong"))
    count = np.where(right + wrong >= FEW, right + wrong, np.nan)
    share = right / count
    return share, np.sqrt(share * (1 - share) / count)


def _flatness(starts: list[dict], seeds: list[int]) -> list[tuple]:
    rows = []
    for seed, start in zip(seeds, starts, strict=True):
        share, error = _shares(start, "bucket")
        count = np.add(start["bucket_right"], start["bucket_wrong"])
        shown = zip(share, error, count, strict=True)
        cells = [f"{s:.3f} ± {e:.3f} of {n:,}" if n >= FEW else f"{n}, too few" for s, e, n in shown]
        low, high = np.nanargmin(share), np.nanargmax(share)
        rows.append((seed, *cells, f"{share[high] - share[low]:.3f} ± {math.hypot(error[high], error[low]):.3f}"))
    return rows


def _figure(results: dict[str, RunResult], records: dict, seeds: list[int]):
    figure, axes = new_figure(2, 2, height=7.0)
    for run in ("rl", "toggle"):
        for kind, style in (("right", "-"), ("wrong", ":")):
            line = {"label": f"{LABELS[run]}, {kind}", "style": style, "color": COLORS[run], "linewidth": 1.2}
            seed_curves(axes[0, 0], results, run, f"length_{kind}", **line)
    for begin in range(0, results[f"seed{seeds[0]}_toggle"].config.train.steps, 2 * PERIOD):
        axes[0, 0].axvspan(begin + 0.5, begin + PERIOD + 0.5, color=COLORS["toggle"], alpha=0.08, linewidth=0)
    axes[0, 0].set_ylim(0, EDGES[-1])
    style_axes(axes[0, 0], title="Length of sampled responses, budgets shaded", x="iteration", y="tokens")
    legend(axes[0, 0], fontsize=8, ncols=2, loc="lower center")
    middles = (np.arange(len(records["sft"][0]["tokens_right"])) + 0.5) * BIN
    for seed, start in zip(seeds, records["sft"], strict=True):
        axes[0, 1].errorbar(middles, *_shares(start, "tokens"), fmt="o-", markersize=3, label=f"seed {seed}")
    axes[0, 1].set_ylim(0, 1.05)
    style_axes(axes[0, 1], title="P(right | length) at the start, ± 1 s.e.", x="tokens", y="share of samples")
    legend(axes[0, 1])
    for panel, runs_shown in ((axes[1, 0], ("sft",)), (axes[1, 1], ("rl", "toggle"))):
        for run in runs_shown:
            for kind, style in (("right", "-"), ("wrong", ":")):
                counts = np.sum([each[f"tokens_{kind}"] for each in records[run]], 0)
                panel.step(middles, np.maximum(counts, 0.5), style, where="mid", color=COLORS[run],
                           label=f"{LABELS[run]}, {kind}")  # fmt: skip
        panel.set_yscale("log")
        panel.set_ylim(top=1e6)
        legend(panel, fontsize=8, loc="upper center", ncols=2)
    style_axes(axes[1, 0], title="Sampled lengths at the start", x="tokens", y="samples of all seeds")
    style_axes(axes[1, 1], title="Sampled lengths at the end", x="tokens", y="samples of all seeds")
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
