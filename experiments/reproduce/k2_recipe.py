"""Three parts of Kimi K2's recipe for reinforcement learning, each against the same run without it.

Reproduces: budget control, PTX and temperature decay (Kimi K2, section 3.2.3) at the scale of a laptop. The model, the
tasks and the start are those of ``nano_post_training``, whose finished runs are used where the workdir is the same. A
budget of 40 tokens leaves room for every worked sum of four digits and for no worked running sum or sort. PTX trains on
the text of pretraining, which the policy loss never sees: easier problems of five kinds, of which subtracting and
reversing are not among the tasks; with a coefficient of 0.1 in the place of 0.02 one seed learnt nothing else in 14
iterations. The temperature falls from 1.3 to the 1.0 at which the run without decay samples throughout.
Expected: the budget halves lengths and costs the task whose working does not fit it; PTX wins back a little of what
fine-tuning had forgotten; the decay changes nothing but the early entropy (docs/reproductions.md).

    python -m k2jax.reproduce k2_recipe --workdir=runs/nano_post_training
"""

from pathlib import Path

from matplotlib.ticker import LogLocator
import numpy as np

from k2jax.config import resolve, task
from k2jax.report.style import PALETTE, legend, new_figure, reference_line, style_axes
from k2jax.report.table import markdown_table, percent
from k2jax.reproduce import RunResult, Study, Summary, curve
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.reproduce.study_file import load_study_file

base = load_study_file("nano_post_training")
get_config, prepare = base.get_config, base.prepare
SHARED = ("pretrained", "sft", "rl_k2.5")
BUDGET = 40  # worked answers take 29 to 40 tokens (add4), 44 to 50 (sum7) and 47 (sort7)
LAST, EASIER_PROBLEMS = 10, 500  # iterations whose mean is the end of a curve; easier problems that are held out
TASKS = "rl.tasks.problems"
DECAY = {"": 1.3, "_final": 1.0, "_decay": 0.6}
PARTS = {
    "rl_budget": {f"{TASKS}.max_tokens": BUDGET, f"{TASKS}.overlong_penalty": 0.5},
    "rl_ptx": {"data.sources.text.path": "{workdir}/text.jsonl", "rl.loss.ptx": 0.02, "rl.loss.ptx_rows": 8},
    "rl_decay": {f"{TASKS}.temperature{key}": value for key, value in DECAY.items()},
}
LABELS = {
    "pretrained": "pretrained",
    "sft": "SFT, the start",
    "rl_k2.5": "RL",
    "rl_budget": "RL with a budget",
    "rl_ptx": "RL with PTX",
    "rl_decay": "RL with temperature decay",
}
ACCURACY = {"eval/greedy": "greedy", "eval/avg@8": "Avg@8"}
BUDGET_COLUMNS = {"length": "tokens, sampled", "over_budget": f"longer than {BUDGET}"}
BUDGET_COLUMNS |= {"truncated": "cut, last iterations"} | ACCURACY | {"within_budget": f"Avg@8 in {BUDGET} tokens"}
PTX_COLUMNS = {"text_loss": "held-out text [nats per token]", "easier/greedy": "easier, greedy"}
PTX_COLUMNS |= {"easier/sampled": "easier, sampled", "reversing": "reversing, greedy"} | ACCURACY
ENTROPIES = {"entropy_first": f"entropy, first {LAST} iterations", "entropy_last": f"last {LAST} [nats per token]"}
DECAY_COLUMNS = ACCURACY | {"eval/pass@8": "pass@8"} | ENTROPIES


def held_out_configs():
    """The configurations of all evaluations of answers, whose tasks are loaded before the first run."""
    return [*base.held_out_configs(), _easier_config()]


def _easier_config():
    config, options = get_config(), (f"kinds={base.EASIER}", f"count={EASIER_PROBLEMS}")
    config.rl.tasks = {"easier": task(dataset="characters", options=options, max_tokens=64)}
    config.rl.eval_prompts, config.rl.eval_samples = EASIER_PROBLEMS, 1
    return config


def runs():
    """The chain of each seed to the run without the parts, then a run with each of them."""
    return for_seeds(base.SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    chain = base.chain(seed)
    with_parts = {name: chain["rl_k2.5"] | part for name, part in PARTS.items()}
    return {name: chain[name] for name in SHARED} | with_parts


def evaluate(config, workdir):
    """Accuracy and lengths on 1,000 held-out problems, accuracy on 500 easier ones, and the loss of held-out text."""
    from k2jax.reproduce.text_loss import text_loss

    checkpoint, study = base.checkpoint_of(config, workdir), get_config()
    study.data.sources.text.path = str(workdir.parent / "text.jsonl")
    record = _easier(checkpoint) | {"text_loss": text_loss(resolve(study), checkpoint)}
    if config.stage == "pretrain":  # it has never seen such a problem
        return record
    held_out, groups = base.held_out_answers(checkpoint)
    sampled = [(group, sample) for group in groups for sample in range(1, len(group.trajectories))]
    lengths = np.array([group.trajectories[sample].sampled_tokens for group, sample in sampled])
    cut = np.array([group.trajectories[sample].status == "truncated" for group, sample in sampled])
    right = np.array([held_out.is_right(group, sample) for group, sample in sampled])
    over = cut | (lengths > BUDGET)
    measured = {"length": lengths, "over_budget": over, "within_budget": right & ~over}
    return record | held_out.record(groups) | {key: float(np.mean(values)) for key, values in measured.items()}


def _easier(checkpoint: Path) -> dict[str, float]:
    """Accuracy on held-out problems of the kinds of pretraining."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(_easier_config()), str(checkpoint))
    record = held_out.record(groups)
    return {
        "easier/greedy": record["eval/greedy"],
        "easier/sampled": record["eval/avg@1"],
        "reversing": record["eval/greedy/rev4"],
    }


def summarize(results: dict[str, RunResult]) -> Summary:
    """A paragraph and a table for each part, over seeds."""
    measured = SeedRecords.of(results, LABELS, _measured)
    text = (
        f"{_budget_text(measured)}\n\n{_ptx_text(measured)}\n\n{_decay_text(measured)}\n\n"
        f"1,000 held-out problems, {EASIER_PROBLEMS} easier ones; cells are mean (lowest to highest) over "
        f"{len(measured.seeds)} seeds, each from its own start. Changes are against RL without the part, seed by "
        "seed.\n"
    )
    return Summary(text, _figure(results, measured))


def _budget_text(measured: SeedRecords) -> str:
    limit, penalty = get_config().rl.tasks.problems.max_tokens, PARTS["rl_budget"][f"{TASKS}.overlong_penalty"]
    change = lambda key: measured.gain("rl_budget", key, "rl_k2.5")  # noqa: E731
    return (
        f"**Budget.** An answer is cut after {BUDGET} tokens instead of {limit}, and loses {penalty}. Measured with "
        f"the longer limit, answers over the budget change by {change('over_budget')} points, greedy accuracy by "
        f"{change('eval/greedy')}, Avg@8 by {change('eval/avg@8')}.\n\n"
        f"{_table(measured, ('sft', 'rl_k2.5', 'rl_budget'), BUDGET_COLUMNS)}"
    )


def _ptx_text(measured: SeedRecords) -> str:
    coefficient, rows = PARTS["rl_ptx"]["rl.loss.ptx"], PARTS["rl_ptx"]["rl.loss.ptx_rows"]
    before, after = (measured.spread(run, "easier/greedy") for run in ("pretrained", "sft"))
    change = lambda key: measured.gain("rl_ptx", key, "rl_k2.5")  # noqa: E731
    return (
        f"**PTX.** Every update has {rows} rows of the text of pretraining, with the coefficient {coefficient}. Of "
        f"easier problems, which that text consists of, the pretrained model solves {before}, and the fine-tuned one, "
        f"from which reinforcement learning starts, {after}. PTX changes that by {change('easier/greedy')} points, "
        f"greedy accuracy on the tasks by {change('eval/greedy')}, Avg@8 by {change('eval/avg@8')}.\n\n"
        f"{_table(measured, ('pretrained', 'sft', 'rl_k2.5', 'rl_ptx'), PTX_COLUMNS)}"
    )


def _decay_text(measured: SeedRecords) -> str:
    first, last, over = DECAY.values()
    change = lambda key: measured.gain("rl_decay", key, "rl_k2.5")  # noqa: E731
    return (
        f"**Temperature decay.** From {first} to {last} over {percent(over, 2)} of the run, instead of "
        f"{get_config().rl.tasks.problems.temperature} throughout. Greedy accuracy changes by {change('eval/greedy')} "
        f"points, Avg@8 at temperature 1 by {change('eval/avg@8')}. Entropy is that of the distribution which is "
        f"sampled, temperature included.\n\n{_table(measured, ('sft', 'rl_k2.5', 'rl_decay'), DECAY_COLUMNS)}"
    )


def _measured(result: RunResult) -> dict[str, float]:
    """What was evaluated of a run, and the ends of its curves."""
    truncated, entropies = (curve(result, metric)[1] for metric in ("truncated", "tokens/entropy"))
    ends = {"truncated": truncated[-LAST:], "entropy_first": entropies[:LAST], "entropy_last": entropies[-LAST:]}
    return dict(result.evaluation) | {name: float(np.mean(values)) for name, values in ends.items() if values}


def _table(measured: SeedRecords, chosen: tuple[str, ...], columns: dict[str, str]) -> str:
    digits = {"length": 1}
    rows = [(LABELS[run], *(measured.spread(run, key, digits.get(key, 3)) for key in columns)) for run in chosen]
    return markdown_table(("run", *columns.values()), rows).rstrip()


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 3, width=13.0, height=4.0)
    _curves(axes[0, 0], results, "length", "rl_budget")
    reference_line(axes[0, 0], BUDGET, f"budget, {BUDGET} tokens")
    axes[0, 0].set_ylim(0, 1.2 * BUDGET)
    style_axes(axes[0, 0], title="Budget: length of responses", x="iteration", y="tokens, mean")
    legend(axes[0, 0], loc="lower right")
    kept = {run: LABELS[run] for run in ("pretrained", "sft", "rl_k2.5", "rl_ptx")}
    seed_bars(axes[0, 1], measured, kept, {"easier/greedy": "easier problems", "eval/greedy": "the tasks"}, PALETTE[2:])
    style_axes(axes[0, 1], title="PTX: what is kept, greedy accuracy", x="share of problems")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    _curves(axes[0, 2], results, "tokens/entropy", "rl_decay")
    axes[0, 2].set_yscale("log")
    axes[0, 2].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0, 2].yaxis.set_major_formatter("{x:g}")
    axes[0, 2].yaxis.set_minor_formatter("")
    style_axes(axes[0, 2], title="Decay: entropy of sampling", x="iteration", y="nats per token")
    legend(axes[0, 2])
    return figure


def _curves(panel, results: dict[str, RunResult], metric: str, part: str):
    """A metric along the runs without and with a part, a line for each seed."""
    for run, color in (("rl_k2.5", PALETTE[0]), (part, PALETTE[1])):
        seed_curves(panel, results, run, metric, label=LABELS[run], color=color)


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
