"""Three parts of Kimi K2's recipe for reinforcement learning, each against the same run without it.

Reproduces: budget control, PTX and temperature decay (Kimi K2, section 3.2.3) at the scale of a laptop. The model, the
tasks and the start are those of ``nano_post_training``, whose finished runs are used where the workdir is the same. A
budget of 40 tokens leaves room for every worked sum of four digits and for no worked running sum or sort. PTX trains on
the text of pretraining, which the policy loss never sees: easier problems of five kinds, of which subtracting and
reversing are not among the tasks; with a coefficient of 0.1 in the place of 0.02 one seed learnt nothing else in 14
iterations. The temperature falls from 1.3 to the 1.0 at which the run without decay samples throughout.
Expected: not measured yet. The table says of each part what it changes, whichever way it falls.

    python -m k2jax.reproduce k2_recipe --workdir=runs/nano_post_training
"""

from pathlib import Path

from matplotlib.ticker import LogLocator
import numpy as np

from k2jax.config import resolve, task
from k2jax.report.style import PALETTE, legend, new_figure, reference_line, style_axes
from k2jax.report.table import markdown_table, percent
from k2jax.reproduce import RunResult, Summary, curve, points, spread
from k2jax.reproduce.loading import load_study

base = load_study("nano_post_training")
get_config, prepare = base.get_config, base.prepare
EVALUATION = "recipe.json"  # beside what nano_post_training has measured of the runs that both have

SHARED = ("pretrained", "sft", "rl_k2.5")
BUDGET = 40  # worked answers take 29 to 40 tokens (add4), 44 to 50 (sum7) and 47 (sort7)
LAST = 10  # iterations whose mean is the end of a curve
EASIER_PROBLEMS = 500
TASKS = "rl.tasks.problems"
PARTS = {
    "rl_budget": {f"{TASKS}.max_tokens": BUDGET, f"{TASKS}.overlong_penalty": 0.5},
    "rl_ptx": {"data.sources.text.path": "{workdir}/text.jsonl", "rl.loss.ptx": 0.02, "rl.loss.ptx_rows": 8},
    "rl_decay": {
        f"{TASKS}.temperature": 1.3,
        f"{TASKS}.temperature_final": 1.0,
        f"{TASKS}.temperature_decay": 0.6,
    },
}
LABELS = {
    "pretrained": "pretrained",
    "sft": "SFT, the start",
    "rl_k2.5": "RL",
    "rl_budget": "RL with a budget",
    "rl_ptx": "RL with PTX",
    "rl_decay": "RL with temperature decay",
}
ACCURACY = (("eval/greedy", "greedy"), ("eval/avg@8", "Avg@8"))
BUDGET_COLUMNS = (
    ("length", "tokens, sampled"),
    ("over_budget", f"longer than {BUDGET}"),
    ("truncated", "cut, last iterations"),
    *ACCURACY,
    ("within_budget", f"Avg@8 in {BUDGET} tokens"),
)
PTX_COLUMNS = (
    ("text_loss", "held-out text [nats per token]"),
    ("easier/greedy", "easier, greedy"),
    ("easier/sampled", "easier, sampled"),
    ("reversing", "reversing, greedy"),
    *ACCURACY,
)
DECAY_COLUMNS = (
    *ACCURACY,
    ("eval/pass@8", "pass@8"),
    ("entropy_first", f"entropy, first {LAST} iterations"),
    ("entropy_last", f"last {LAST} [nats per token]"),
)


def runs():
    """For each seed the chain to the run without the parts, then a run with each of them."""
    found = {}
    for seed in base.SEEDS:
        chain = base.chain(seed)
        of_seed = {name: chain[name] for name in SHARED}
        of_seed |= {name: chain["rl_k2.5"] | part for name, part in PARTS.items()}
        found |= {f"seed{seed}_{name}": run | {"train.seed": seed} for name, run in of_seed.items()}
    return found


def evaluate(config, workdir):
    """Accuracy and lengths on 1,000 held-out problems, accuracy on 500 easier ones, and the loss of held-out text."""
    checkpoint = base.checkpoint_of(config, workdir)
    record = _easier(checkpoint) | {"text_loss": _text_loss(checkpoint, workdir.parent / "text.jsonl")}
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

    study = get_config()
    options = (f"kinds={base.EASIER}", f"count={EASIER_PROBLEMS}")
    study.rl.tasks = {"easier": task(dataset="characters", options=options, max_tokens=64)}
    study.rl.eval_prompts, study.rl.eval_samples = EASIER_PROBLEMS, 1
    held_out, groups = evaluate_checkpoint(resolve(study), str(checkpoint))
    record = held_out.record(groups)
    return {
        "easier/greedy": record["eval/greedy"],
        "easier/sampled": record["eval/avg@1"],
        "reversing": record["eval/greedy/rev4"],
    }


def _text_loss(checkpoint: Path, text: Path) -> float:
    """Mean negative log-likelihood of the held-out text of pretraining [nats per token]."""
    from k2jax.convert.loading import from_pretrained, tokenizer_of
    from k2jax.data import prepare_data
    from k2jax.train.corpus import held_out_batches
    from k2jax.train.program import Program

    study = get_config()
    study.data.sources.text.path = str(text)
    config = resolve(study)
    rows, steps = config.train.batch_size, config.train.steps
    data = prepare_data(config.data, batch_size=rows, seed=0, steps=steps, tokenizer=tokenizer_of(checkpoint))
    program, (_, params) = Program(config), from_pretrained(checkpoint)
    nll = targets = 0.0
    for batch in held_out_batches(config, data, final=True):
        sums, denominators = program.evaluate(params, program.batch_sharding().put(batch))
        nll, targets = nll + float(sums.terms["nll"]), targets + float(denominators["nll"])
    return nll / targets


def summarize(results: dict[str, RunResult]) -> Summary:
    """A paragraph and a table for each part, over seeds."""
    seeds = sorted({result.config.train.seed for result in results.values()})
    found = {run: [_measured(results[f"seed{seed}_{run}"]) for seed in seeds] for run in LABELS}
    text = (
        f"{_budget_text(found)}\n\n{_ptx_text(found)}\n\n{_decay_text(found)}\n\n"
        f"1,000 held-out problems, {EASIER_PROBLEMS} easier ones; cells are mean (lowest to highest) over {len(seeds)} "
        "seeds, each from its own start. Changes are against RL without the part, seed by seed.\n"
    )
    return Summary(text, _figure(results, found, seeds))


def _budget_text(found: dict[str, list[dict]]) -> str:
    limit, penalty = get_config().rl.tasks.problems.max_tokens, PARTS["rl_budget"][f"{TASKS}.overlong_penalty"]
    return (
        f"**Budget.** An answer is cut after {BUDGET} tokens instead of {limit}, and loses {penalty}. Measured with "
        f"the longer limit, answers over the budget change by {_change(found, 'rl_budget', 'over_budget')} points, "
        f"greedy accuracy by {_change(found, 'rl_budget', 'eval/greedy')}, Avg@8 by "
        f"{_change(found, 'rl_budget', 'eval/avg@8')}.\n\n"
        f"{_table(found, ('sft', 'rl_k2.5', 'rl_budget'), BUDGET_COLUMNS)}"
    )


def _ptx_text(found: dict[str, list[dict]]) -> str:
    coefficient, rows = PARTS["rl_ptx"]["rl.loss.ptx"], PARTS["rl_ptx"]["rl.loss.ptx_rows"]
    before, after = (spread(_values(found[run], "easier/greedy")) for run in ("pretrained", "sft"))
    return (
        f"**PTX.** Every update has {rows} rows of the text of pretraining, with the coefficient {coefficient}. Of "
        f"easier problems, which that text consists of, the pretrained model solves {before}, and the fine-tuned one, "
        f"from which reinforcement learning starts, {after}. PTX changes that by "
        f"{_change(found, 'rl_ptx', 'easier/greedy')} points, greedy accuracy on the tasks by "
        f"{_change(found, 'rl_ptx', 'eval/greedy')}, Avg@8 by {_change(found, 'rl_ptx', 'eval/avg@8')}.\n\n"
        f"{_table(found, ('pretrained', 'sft', 'rl_k2.5', 'rl_ptx'), PTX_COLUMNS)}"
    )


def _decay_text(found: dict[str, list[dict]]) -> str:
    decay = PARTS["rl_decay"]
    first, last, over = (decay[f"{TASKS}.temperature{key}"] for key in ("", "_final", "_decay"))
    return (
        f"**Temperature decay.** From {first} to {last} over {percent(over, 2)} of the run, "
        f"instead of {get_config().rl.tasks.problems.temperature} throughout. Greedy accuracy changes by "
        f"{_change(found, 'rl_decay', 'eval/greedy')} points, Avg@8 at temperature 1 by "
        f"{_change(found, 'rl_decay', 'eval/avg@8')}. Entropy is that of the distribution which is sampled, "
        "temperature included.\n\n"
        f"{_table(found, ('sft', 'rl_k2.5', 'rl_decay'), DECAY_COLUMNS)}"
    )


def _change(found: dict[str, list[dict]], run: str, key: str) -> str:
    """What a part adds to a share, in points."""
    return points(_values(found[run], key), _values(found["rl_k2.5"], key))


def _measured(result: RunResult) -> dict[str, float]:
    """What was evaluated of a run, and the ends of its curves."""
    record = dict(result.evaluation)
    for name, metric, where in (
        ("truncated", "truncated", slice(-LAST, None)),
        ("entropy_first", "tokens/entropy", slice(0, LAST)),
        ("entropy_last", "tokens/entropy", slice(-LAST, None)),
    ):
        if values := curve(result, metric)[1][where]:
            record[name] = float(np.mean(values))
    return record


def _values(records: list[dict[str, float]], key: str) -> list[float | None]:
    return [record.get(key) for record in records]


def _table(found: dict[str, list[dict]], chosen: tuple[str, ...], columns: tuple[tuple[str, str], ...]) -> str:
    digits = lambda key: 1 if key == "length" else 3  # noqa: E731
    rows = [(LABELS[run], *(spread(_values(found[run], key), digits(key)) for key, _ in columns)) for run in chosen]
    return markdown_table(("run", *(label for _, label in columns)), rows).rstrip()


def _figure(results: dict[str, RunResult], found: dict[str, list[dict]], seeds: list[int]):
    figure, axes = new_figure(1, 3, width=13.0, height=4.0)
    _curves(axes[0, 0], results, seeds, "length", "rl_budget")
    reference_line(axes[0, 0], BUDGET, f"budget, {BUDGET} tokens")
    axes[0, 0].set_ylim(0, 1.2 * BUDGET)
    style_axes(axes[0, 0], title="Budget: length of responses", x="iteration", y="tokens, mean")
    legend(axes[0, 0], loc="lower right")
    _bars(axes[0, 1], found, ("pretrained", "sft", "rl_k2.5", "rl_ptx"))
    _curves(axes[0, 2], results, seeds, "tokens/entropy", "rl_decay")
    axes[0, 2].set_yscale("log")
    axes[0, 2].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0, 2].yaxis.set_major_formatter("{x:g}")
    axes[0, 2].yaxis.set_minor_formatter("")
    style_axes(axes[0, 2], title="Decay: entropy of sampling", x="iteration", y="nats per token")
    legend(axes[0, 2])
    return figure


def _curves(panel, results: dict[str, RunResult], seeds: list[int], metric: str, part: str):
    """A metric along the runs without and with a part, a line for each seed."""
    for run, color in (("rl_k2.5", PALETTE[0]), (part, PALETTE[1])):
        for number, seed in enumerate(seeds):
            label = LABELS[run] if number == 0 else None
            panel.plot(*curve(results[f"seed{seed}_{run}"], metric), color=color, alpha=0.7, label=label)


def _bars(panel, found: dict[str, list[dict]], chosen: tuple[str, ...]):
    """Accuracy on easier problems and on the tasks, mean and range of seeds."""
    for place, (key, label) in enumerate((("easier/greedy", "easier problems"), ("eval/greedy", "the tasks"))):
        known = [(row, values) for row, run in enumerate(chosen) if None not in (values := _values(found[run], key))]
        rows, means = np.array([row for row, _ in known]), np.array([np.mean(values) for _, values in known])
        errors = [means - [min(values) for _, values in known], [max(values) for _, values in known] - means]
        at = rows + 0.38 * (place - 0.5)
        panel.barh(at, means, 0.36, xerr=np.maximum(errors, 0), color=PALETTE[2 + place], label=label)
    panel.set_yticks(range(len(chosen)), [LABELS[run] for run in chosen])
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    style_axes(panel, title="PTX: what is kept, greedy accuracy", x="share of problems")
    panel.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
