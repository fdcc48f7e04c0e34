"""A small Kimi K2 learns to reason: pretraining, fine-tuning by an imperfect teacher, reinforcement learning.

Reproduces: the order of Kimi K2's and K2.5's training and what each part adds, at the scale of a laptop (Kimi K2,
sections 2 to 3.2; K2.5, section 4). The tasks are sums of four digits, running sums of seven, and sorting of seven
letters, as characters, each with an exact answer. The teacher gives most answers at once, without working them out,
which a model of a million parameters cannot learn well; a tenth of all problems is held out. Fine-tuning ends by
patience. Beside reinforcement learning stand as much more fine-tuning, rejection sampling online and offline, and a
teacher who works everything out. The share of worked answers tells a change of style from a gain of skill.
Expected: reinforcement learning ends 20 points and more above the fine-tuned start, greedy and Avg@8. K2's and K2.5's
objectives with four updates an iteration do not differ beyond the spread of the seeds.

    python -m k2jax.reproduce nano_post_training --workdir=runs/nano_post_training
"""

import json
from pathlib import Path

import numpy as np

from k2jax.config import defaults, resolve, source, task
from k2jax.env.registry import load_tasks
from k2jax.env.tasks.teacher import demonstrations, pretraining_texts, style_of
from k2jax.report.files import write_atomic
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Summary, curve, points, spread

SEEDS = (0, 1, 2)
KINDS = "add4+sum7+sort7"
EASIER = "add2+sub2+sum4+sort4+rev4"  # of pretraining, which never sees a problem of the tasks
DEMONSTRATIONS = 24_000
DIRECT = 0.6  # share of the teacher's answers without working
ITERATIONS, SFT_STEPS = 70, 720
SFT = {"stage": "sft", "data.sources.text.kind": "chat", "train.steps": SFT_STEPS, "train.patience": 4}
KEYS = ("eval/greedy", "eval/avg@8", "eval/pass@8", "worked", "worked_right", "direct_right", "eval/length")
HEADER = ("run", "greedy", "points over SFT", "Avg@8", "points over SFT", "pass@8", "worked", "right if worked",
          "right if direct", "tokens")  # fmt: skip
LABELS = {
    "sft": "SFT, the start",
    "rl_k2.5": "RL, K2.5",
    "rl_k2": "RL, K2",
    "rejection_online": "rejection sampling, online",
    "more_sft": "as much more SFT",
    "rejection_offline": "rejection sampling, offline",
    "sft_of_clean_teacher": "SFT, clean teacher (ceiling)",
}
RL = {
    "stage": "rl",
    "train.steps": ITERATIONS,
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule.warmup_steps": 2,
    "router.bias_rate": 0.0,
    "router.bias_rate_final": 0.0,
    "eval.every": 14,
    "checkpoint.every": 10,
}


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = defaults("pretrain", model="micro")
    config.data.sources = {"text": source(kind="jsonl")}
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    config.data.held_out = 0.03
    config.train.batch_size = 16
    config.train.steps = 160
    config.optimizer.learning_rate = 1e-2
    config.router.bias_rate = 5e-2
    config.router.bias_rate_final = 1e-3
    config.eval.every = 20
    config.eval.sample_tokens = 0
    config.checkpoint.every = 100
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    options = (f"kinds={KINDS}", "count=20000")
    config.rl.tasks = {"problems": task(dataset="characters", options=options, max_tokens=64)}
    config.rl.rollout.max_length = 96
    config.rl.updates = 4
    config.rl.skip_flat_groups = True
    config.rl.eval_prompts = 128
    return config


def prepare(workdir: Path):
    """Writes the text of pretraining, and the demonstrations of both teachers."""
    problems = load_tasks("characters", (f"kinds={KINDS}", f"count={DEMONSTRATIONS}"))
    texts = pretraining_texts(load_tasks("characters", (f"kinds={EASIER}", "count=20000")))
    files = {
        "text.jsonl": ({"text": text} for text in texts),
        "imperfect.jsonl": demonstrations(problems, direct=DIRECT),
        "clean.jsonl": demonstrations(problems, direct=0.0),
    }
    for name, records in files.items():
        if not (workdir / name).exists():
            write_atomic(workdir / name, "".join(json.dumps(record) + "\n" for record in records))


def runs():
    """For each seed the chain, then what is compared with its end."""
    return {f"seed{seed}_{name}": run | {"train.seed": seed} for seed in SEEDS for name, run in chain(seed).items()}


def chain(seed: int) -> dict[str, dict]:
    """The runs of a seed by name, each after those that it starts from."""
    folder = f"{{workdir}}/seed{seed}"
    start, imperfect = f"{folder}_sft/best", {"data.sources.text.path": "{workdir}/imperfect.jsonl"}
    from_start = {"init_from": start}
    half = {"optimizer.learning_rate": 5e-4}
    rejection = {"rl.loss.name": "reinforce", "rl.advantage.baseline": "none"}
    more = {"train.steps": 4 * ITERATIONS, "train.patience": 0, "optimizer.learning_rate": 1e-3}
    return {
        "pretrained": {"data.sources.text.path": "{workdir}/text.jsonl"},
        "sft": SFT | imperfect | {"init_from": f"{folder}_pretrained"},
        "rl_k2.5": RL | from_start | half,
        "rl_k2": RL | from_start | half | {"rl.loss.name": "k2", "rl.loss.tau": 0.1},
        "rejection_online": RL | from_start | half | rejection,
        "more_sft": SFT | imperfect | from_start | more,
        "samples_of_sft": RL
        | from_start
        | {"optimizer.learning_rate": 0.0, "rl.keep_trajectories": ITERATIONS, "rl.eval_prompts": 0},
        "rejection_offline": SFT
        | from_start
        | more
        | {
            "data.sources.text.kind": "trajectories",
            "data.sources.text.path": f"{folder}_samples_of_sft/trajectories",
            "data.sources.text.filters": ("correct_answer",),
        },
        "sft_of_clean_teacher": SFT
        | {"init_from": f"{folder}_pretrained", "data.sources.text.path": "{workdir}/clean.jsonl"},
    }


def checkpoint_of(config, workdir: Path) -> Path:
    """What a run has made: its best step where it ends by patience, else its last."""
    return workdir / "best" if config.stage == "sft" and config.train.patience else workdir


def held_out_answers(checkpoint: Path):
    """Answers of a checkpoint to the 1,000 held-out problems, and what makes a record of them."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    study = get_config()
    study.rl.eval_prompts = 1000
    return evaluate_checkpoint(resolve(study), str(checkpoint))


def evaluate(config, workdir):
    """Accuracy on 1,000 held-out problems, greedy and Avg@8, and the share of worked answers; none of pretraining."""
    if config.stage == "pretrain" or workdir.name.endswith("samples_of_sft"):
        return {}
    held_out, groups = held_out_answers(checkpoint_of(config, workdir))
    record = held_out.record(groups)
    greedy = [group.trajectories[0] for group in groups]
    worked = [style_of(trajectory.answer) == "worked" for trajectory in greedy]
    record["worked"] = float(np.mean(worked))
    for style in (True, False):
        chosen = [group for group, is_worked in zip(groups, worked, strict=True) if is_worked == style]
        right = [held_out.is_right(group, 0) for group in chosen]
        record["worked_right" if style else "direct_right"] = float(np.mean(right)) if right else None
    return record


def summarize(results: dict[str, RunResult]) -> Summary:
    """Every run's accuracy over seeds, and the points that it adds to the fine-tuned start."""
    seeds = sorted({result.config.train.seed for result in results.values()})
    found = {run: [results[f"seed{seed}_{run}"].evaluation for seed in seeds] for run in LABELS}
    values = {run: {key: [each.get(key) for each in of] for key in KEYS} for run, of in found.items()}
    start, end = values["sft"], values["rl_k2.5"]
    rows = [
        (LABELS[run], spread(of["eval/greedy"]), points(of["eval/greedy"], start["eval/greedy"]),
         spread(of["eval/avg@8"]), points(of["eval/avg@8"], start["eval/avg@8"]),
         *(spread(of[key]) for key in KEYS[2:]))
        for run, of in values.items()
    ]  # fmt: skip
    chain = ("pretrained", "sft", "rl_k2.5")
    minutes = [sum(curve(results[f"seed{seed}_{run}"], "seconds")[1][-1] for run in chain) / 60 for seed in seeds]
    text = (
        f"Reinforcement learning with K2.5's objective adds {points(end['eval/greedy'], start['eval/greedy'])} points "
        f"of greedy accuracy and {points(end['eval/avg@8'], start['eval/avg@8'])} of Avg@8 to a start that solves "
        f"{spread(start['eval/greedy'])}.\n\n{markdown_table(HEADER, rows)}\n1,000 held-out problems; mean (lowest to "
        f"highest) over {len(seeds)} seeds. Pretraining, fine-tuning and K2.5's iterations took {spread(minutes, 1)} "
        "minutes of training time a seed.\n"
    )
    return Summary(text, _figure(results, values, seeds))


def _figure(results: dict[str, RunResult], values: dict, seeds: list[int]):
    figure, axes = new_figure(1, 2, height=4.0)
    for run, color in (("rl_k2.5", PALETTE[0]), ("rl_k2", PALETTE[1]), ("rejection_online", PALETTE[2])):
        for number, seed in enumerate(seeds):
            label = LABELS[run] if number == 0 else None
            axes[0, 0].plot(*curve(results[f"seed{seed}_{run}"], "accuracy"), color=color, alpha=0.7, label=label)
    style_axes(axes[0, 0], title="Sampled responses that are right", x="iteration", y="share")
    legend(axes[0, 0])
    for place, (key, label) in enumerate((("eval/greedy", "greedy"), ("eval/avg@8", "Avg@8"))):
        means = np.array([np.mean(of[key]) for of in values.values()])
        ranges = np.array([(min(of[key]), max(of[key])) for of in values.values()]).T
        errors = np.abs(ranges - means)
        at = np.arange(len(means)) + 0.38 * (place - 0.5)
        axes[0, 1].barh(at, means, 0.36, xerr=errors, color=PALETTE[place], label=label)
    axes[0, 1].set_yticks(range(len(values)), [LABELS[run] for run in values])
    axes[0, 1].invert_yaxis()
    axes[0, 1].set_xlim(0, 1)
    style_axes(axes[0, 1], title="Held-out accuracy, mean and range of seeds", x="share of problems")
    legend(axes[0, 1])
    return figure
