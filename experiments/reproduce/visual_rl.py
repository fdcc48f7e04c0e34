"""Does reinforcement learning on pictures improve what a model sees, and what does it do to text?

Reproduces: outcome-based visual reinforcement learning and its effect on text (Kimi K2.5, sections 2.3 and 4.4.2, table
2), at the scale of a laptop. The model and the pictures are those of ``experiments/sft/nano_vision.py``, the rewards
those of ``experiments/rl/nano_vision.py``: how near a count is, the similarity of words, soft F1 of boxes. The start is
a shorter run of the former, from random weights, after descriptions of all shapes, and one row in four of both is text:
problems of characters, with the answers of a teacher. Its rate stays constant to its end: it stops while it learns to
count. Reinforcement learning continues with pictures alone, from one start on three seeds. Before and after, held-out
questions about pictures are rewarded by kind, and held-out problems of text are solved.
Expected: 15 points of the mean reward of sampled answers and 7 of greedy ones (docs/reproductions.md).

    python -m k2jax.reproduce visual_rl --workdir=runs/visual_rl
"""

from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import source, task
from k2jax.config.experiments import load_experiment
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, curve
from k2jax.reproduce.micro import BY_REWARDS, write_data
from k2jax.reproduce.results import points, spread
from k2jax.reproduce.visual import held_out_rewards
from k2jax.tasks.characters.teacher import demonstrations

SEEDS = (0, 1, 2)
DESCRIBE_STEPS, SFT_STEPS, ITERATIONS = 1200, 1900, 100
PROBLEMS = "add3+sort5"
TEXTS = 6000
HELD_OUT, SAMPLES = 240, 2
"""Held-out questions about pictures, and problems of text; sampled answers of each."""
WAYS = {"greedy": "greedy", "sampled": "sampled"}
DESCRIBED, START = "described", "start"


def get_config():
    """The fine-tuning with pictures and text, and the tasks with rewards; pictures are those of the experiments."""
    config = _experiment("sft")
    config.rl = _experiment("rl").rl
    weight = sum(each.weight for each in config.data.sources.values()) / 3
    config.data.sources.text = source(kind="chat", path="{workdir}/text.jsonl", weight=weight)
    config.init_from = None
    config.train.steps = SFT_STEPS
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule.decay_steps = 0
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    config.rl.eval_prompts = 0
    return config


def _experiment(stage: str):
    return load_experiment(Path("experiments") / stage / "nano_vision.py").get_config()


def held_out_configs():
    """The evaluations about pictures and about text, whose tasks are loaded before the first run."""
    pictures, text = get_config(), get_config()
    for each in pictures.rl.tasks.values():  # to draw as many as training has takes long
        each.options = (*(option for option in each.options if not option.startswith("count=")), f"count={HELD_OUT}")
    text.rl.tasks = {"text": task(dataset="characters", options=_options(), max_tokens=16)}
    for config in (pictures, text):
        config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
    return [pictures, text]


def _options(count: int = 4000) -> tuple[str, ...]:
    return (f"kinds={PROBLEMS}", f"count={count}")


def prepare(workdir: Path):
    """Writes the problems of text with the teacher's answers."""
    write_data(workdir, {"text.jsonl": demonstrations(load_tasks("characters", _options(TEXTS)), direct=1.0)})


def runs():
    """Descriptions of all shapes, the start, and reinforcement learning from it with each seed."""
    path = {"data.sources.text.path": "{workdir}/text.jsonl"}
    own = _experiment("rl")
    rates = {key: own.optimizer[key] for key in ("learning_rate", "tower_rate", "projector_rate")}
    rewards = BY_REWARDS | {f"optimizer.{key}": rate for key, rate in rates.items()}
    rewards |= path | {
        "data.images.patches": own.data.images.patches,
        "init_from": f"{{workdir}}/{START}",
        "train.steps": ITERATIONS,
    }
    described = path | {f"data.sources.{kind}.pictures": ("describe",) for kind in ("locate", "count")}
    described |= {"train.steps": DESCRIBE_STEPS}
    start = path | {"init_from": f"{{workdir}}/{DESCRIBED}", "optimizer.schedule.kind": "constant"}
    stages = {DESCRIBED: described, START: start}
    return stages | {f"seed{seed}_rl": rewards | {"train.seed": seed} for seed in SEEDS}


def evaluate(config, workdir):
    """Mean rewards of held-out pictures by kind, and of problems of text, greedily and sampled."""
    return held_out_rewards(held_out_configs(), workdir)


def summarize(results: dict[str, RunResult]) -> Summary:
    """Mean rewards before and after by kind, and the points between them."""
    start = results[START].evaluation
    after = [result.evaluation for result in _rewarded(results)]
    kinds = sorted({key.rpartition("/")[0] for key in start}, key=lambda kind: (not _is_picture(kind), kind))
    rows = [
        (kind.removeprefix("pictures/") if _is_picture(kind) else f"text: {kind}", *_cells(start, after, kind))
        for kind in kinds
    ]
    pictures = [kind for kind in kinds if _is_picture(kind)]
    means = {way: [_mean(record, pictures, way) for record in (start, *after)] for way in WAYS}
    rows.insert(len(pictures), ("pictures, mean of kinds", *_of_ways(means)))
    texts = [kind for kind in kinds if not _is_picture(kind)]
    of_texts = {way: [_mean(record, texts, way) for record in (start, *after)] for way in WAYS}
    gains = {way: points(values[1:], values[:1] * len(after)) for way, values in means.items()}
    kept = {way: points(values[1:], values[:1] * len(after)) for way, values in of_texts.items()}
    header = ("task", *(f"{label}, {when}" for label in WAYS.values() for when in ("before", "after", "points")))
    text = (
        f"Reinforcement learning adds {gains['greedy']} points of the mean reward of held-out pictures, greedily, and "
        f"{gains['sampled']} sampled. Problems of text, which it never shows, change by {kept['greedy']} and "
        f"{kept['sampled']} points.\n\n{markdown_table(header, rows)}\nMean rewards of {HELD_OUT} held-out questions "
        f"about pictures and as many problems of text, {SAMPLES} samples of each; one start, mean (lowest to highest) "
        f"over {len(after)} seeds of reinforcement learning.\n"
    )
    return Summary(text, _figure(results, kinds))


def _rewarded(results: dict[str, RunResult]) -> list[RunResult]:
    return [result for name, result in results.items() if name not in (DESCRIBED, START)]


def _is_picture(kind: str) -> bool:
    return kind.startswith("pictures/")


def _mean(record, kinds: list[str], way: str) -> float:
    return float(np.mean([record[f"{kind}/{way}"] for kind in kinds]))


def _cells(start, after, kind: str) -> list[str]:
    return _of_ways({way: [record[f"{kind}/{way}"] for record in (start, *after)] for way in WAYS})


def _of_ways(values: dict[str, list[float]]) -> list[str]:
    """Cells of each way: the start, the range after, and the points between them."""
    return [
        cell
        for first, *rest in values.values()
        for cell in (f"{first:.3f}", spread(rest), points(rest, [first] * len(rest)))
    ]


def _figure(results: dict[str, RunResult], kinds: list[str]):
    figure, axes = new_figure(1, 2, height=4.0, width=11.0)
    after = _rewarded(results)
    for number, result in enumerate(after):
        axes[0, 0].plot(
            *curve(result, "reward"), color=PALETTE[0], alpha=0.7, label=None if number else "sampled in training"
        )
    style_axes(axes[0, 0], title="Visual rewards", x="iteration", y="mean reward")
    legend(axes[0, 0])
    at = np.arange(len(kinds))
    start = [results[START].evaluation[f"{kind}/greedy"] for kind in kinds]
    ends = np.array([[result.evaluation[f"{kind}/greedy"] for kind in kinds] for result in after])
    means = ends.mean(0)
    axes[0, 1].barh(at - 0.19, start, 0.36, color=PALETTE[3], label="before")
    errors = (means - ends.min(0), ends.max(0) - means)
    axes[0, 1].barh(at + 0.19, means, 0.36, xerr=errors, color=PALETTE[4], label="after, mean and range of seeds")
    axes[0, 1].set_yticks(at, [kind if _is_picture(kind) else f"text: {kind}" for kind in kinds])
    axes[0, 1].invert_yaxis()
    axes[0, 1].set_xlim(0, 1)
    style_axes(axes[0, 1], title="Held out, greedy", x="mean reward")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
