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

from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, curve, spread
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.tasks.characters.teacher import demonstrations, pretraining_texts, style_of

SEEDS = (0, 1, 2)
KINDS = "add4+sum7+sort7"
EASIER = "add2+sub2+sum4+sort4+rev4"  # of pretraining, which never sees a problem of the tasks
DEMONSTRATIONS = 24_000
DIRECT = 0.8  # share of the teacher's answers without working
ITERATIONS, SFT_STEPS = 70, 720
SFT = {"stage": "sft", "data.sources.text.kind": "chat", "train.steps": SFT_STEPS, "train.patience": 12}
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
RL = BY_REWARDS | {"train.steps": ITERATIONS, "eval.every": 14}


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = micro_config("pretrain", steps=160)
    config.data.sources = {"text": source(kind="jsonl")}
    config.eval.every = 20
    options = (f"kinds={KINDS}", "count=20000")
    config.rl.tasks = {"problems": task(dataset="characters", options=options, max_tokens=64)}
    config.rl.rollout.max_length = 96
    config.rl.updates = 4
    config.rl.eval_prompts = 128
    return config


def held_out_configs():
    """The configurations of all evaluations of finished runs, whose tasks are loaded before the first run."""
    config = get_config()
    config.rl.eval_prompts = 1000
    return [config]


def prepare(workdir: Path):
    """Writes the text of pretraining, and the demonstrations of both teachers."""
    problems = load_tasks("characters", (f"kinds={KINDS}", f"count={DEMONSTRATIONS}"))
    texts = pretraining_texts(load_tasks("characters", (f"kinds={EASIER}", "count=20000")))
    files = {
        "text.jsonl": ({"text": text} for text in texts),
        "imperfect.jsonl": demonstrations(problems, direct=DIRECT),
        "clean.jsonl": demonstrations(problems, direct=0.0),
    }
    write_data(workdir, files)


def runs():
    """The chain of each seed, then what is compared with its end."""
    return for_seeds(SEEDS, chain)


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

    return evaluate_checkpoint(resolve(*held_out_configs()), str(checkpoint))


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
    measured = SeedRecords.of(results, LABELS)
    gain = lambda run, key: measured.gain(run, key, "sft")  # noqa: E731
    rows = [
        (label, measured.spread(run, "eval/greedy"), gain(run, "eval/greedy"), measured.spread(run, "eval/avg@8"),
         gain(run, "eval/avg@8"), *(measured.spread(run, key) for key in KEYS[2:]))
        for run, label in LABELS.items()
    ]  # fmt: skip
    chain = ("pretrained", "sft", "rl_k2.5")
    seconds = [sum(curve(results[f"seed{seed}_{run}"], "seconds")[1][-1] for run in chain) for seed in measured.seeds]
    text = (
        f"Reinforcement learning with K2.5's objective adds {gain('rl_k2.5', 'eval/greedy')} points of greedy accuracy "
        f"and {gain('rl_k2.5', 'eval/avg@8')} of Avg@8 to a start that solves {measured.spread('sft', 'eval/greedy')}."
        f"\n\n{markdown_table(HEADER, rows)}\n1,000 held-out problems; mean (lowest to highest) over "
        f"{len(measured.seeds)} seeds. Pretraining, fine-tuning and K2.5's iterations took "
        f"{spread([each / 60 for each in seconds], 1)} minutes of training time a seed.\n"
    )
    return Summary(text, _figure(results, measured))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0)
    for run, color in (("rl_k2.5", PALETTE[0]), ("rl_k2", PALETTE[1]), ("rejection_online", PALETTE[2])):
        seed_curves(axes[0, 0], results, run, "accuracy", label=LABELS[run], color=color)
    style_axes(axes[0, 0], title="Sampled responses that are right", x="iteration", y="share")
    legend(axes[0, 0])
    seed_bars(axes[0, 1], measured, LABELS, {"eval/greedy": "greedy", "eval/avg@8": "Avg@8"})
    style_axes(axes[0, 1], title="Held-out accuracy", x="share of problems, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
