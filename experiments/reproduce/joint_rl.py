"""Does text learn less by rewards where pictures are in the same run?

Reproduces: joint reinforcement learning on text and pictures, and what pictures do to text (Kimi K2.5, sections 2.3 and
4.4.2, table 2), at the scale of a laptop. The tower, the pictures and their rewards are those of ``visual_rl.py``; the
decoder has three layers. It learns from random weights to describe pictures and to read words, and then to count shapes
too. A quarter of the rows are problems of characters by a teacher who gives most answers at once, without working them
out. From that one start each seed learns by rewards twice: from problems of text alone, and from the same problems in
the same order beside as many questions about pictures, in one run of twice the answers and as many updates.
Expected: text gains 22 points of held-out reward with pictures and without, and pictures 7 (docs/reproductions.md).

    python -m k2jax.reproduce joint_rl --workdir=runs/joint_rl
"""

import itertools
from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import source, task
from k2jax.config.experiments import load_experiment
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, points, spread
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import BY_REWARDS, write_data
from k2jax.reproduce.seeds import SeedRecords, minutes_of
from k2jax.reproduce.visual import held_out_rewards
from k2jax.tasks.characters.teacher import demonstrations

SEEDS = (0, 1, 2)
DESCRIBE_STEPS, SFT_STEPS, ITERATIONS = 500, 900, 30
SHOWN, REWARDED = "add3+sum6+sort6", "sum6+sort6"
"""Problems of the teacher, and of the rewards: the start adds none of the numbers of ``add3`` rightly, ever."""
TEXTS, DIRECT = 12_000, 0.7
PROMPTS = 32  # of text in an iteration, and as many of pictures where there are any
HELD_OUT, SAMPLES = 240, 2  # problems and questions each, and sampled answers to one
DESCRIBED, START = "described", "start"
LABELS = {"text": "text alone", "joint": "text and pictures"}
WAYS = ("greedy", "sampled")


def get_config():
    """The fine-tuning with pictures and text, and what runs by rewards share."""
    config = load_experiment(Path("experiments") / "sft" / "nano_vision.py").get_config()
    config.model.layers = 3
    del config.data.sources["locate"]
    config.data.sources.text = source(kind="chat", path="{workdir}/text.jsonl", weight=1.0)
    config.init_from = None
    config.train.steps = SFT_STEPS
    config.optimizer.learning_rate = 4e-3
    config.optimizer.schedule.decay_steps = 0
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    config.checkpoint.every = 100
    config.rl.skip_flat_groups = True
    config.rl.updates = 2
    config.rl.loss.per_domain = True  # text counts as much as each kind of pictures, however long its answers are
    config.rl.packing.layout = "tree"
    config.rl.rollout.update({"prompts": PROMPTS, "samples": 8, "max_length": 128})
    config.rl.eval_prompts = 0
    config.rl.tasks = text_tasks(SHOWN)
    return config


def text_tasks(kinds: str = REWARDED, count: int = 20_000):
    """Problems of characters."""
    return {"text": task(dataset="characters", options=(f"kinds={kinds}", f"count={count}"), max_tokens=64)}


def picture_tasks(count: int = 4000):
    """Questions about pictures, half of them about shapes."""
    shapes = ("kinds=count", f"count={count}", "side=84")
    words = ("kinds=read", f"count={count}", "side=112", "height=28")
    common = {"dataset": "pictures", "max_tokens": 24, "weight": 0.5}
    return {"shapes": task(options=shapes, **common), "words": task(options=words, **common)}


def held_out_configs():
    """The evaluations on text and on pictures, whose tasks are loaded before the first run."""
    text, pictures = get_config(), get_config()
    text.rl.tasks = text_tasks(count=HELD_OUT)
    pictures.rl.tasks = picture_tasks(HELD_OUT)
    for config in (text, pictures):
        config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
    return [text, pictures]


def prepare(workdir: Path):
    """Writes the problems of text with the teacher's answers."""
    problems = load_tasks("characters", (f"kinds={SHOWN}", f"count={TEXTS}"))
    write_data(workdir, {"text.jsonl": demonstrations(problems, direct=DIRECT)})


def runs():
    """Descriptions, the start, and reinforcement learning from it with each seed, without pictures and with them."""
    path = {"data.sources.text.path": "{workdir}/text.jsonl"}
    described = path | {"data.sources.count.pictures": ("describe",), "train.steps": DESCRIBE_STEPS}
    start = path | {"init_from": f"{{workdir}}/{DESCRIBED}", "optimizer.schedule.kind": "constant"}
    stages = {DESCRIBED: described, START: start}
    for seed in SEEDS:
        own = (
            BY_REWARDS
            | path
            | {
                "data.images.patches": 288,
                "init_from": f"{{workdir}}/{START}",
                "train.steps": ITERATIONS,
                "train.batch_size": 16,
                "train.seed": seed,
                "optimizer.learning_rate": 5e-4,
                "rl.tasks": text_tasks(),
            }
        )
        joint = {"rl.tasks": text_tasks() | picture_tasks(), "rl.rollout.prompts": 2 * PROMPTS}
        stages |= {f"seed{seed}_text": own, f"seed{seed}_joint": own | joint}
    return stages


def summarize(results: dict[str, RunResult]) -> Summary:
    """Mean rewards of the start and of both ways from it, and the points between the two, seed by seed."""
    start = with_means(results[START].evaluation)
    measured = SeedRecords.of(results, LABELS, lambda result: with_means(result.evaluation))
    means_last = lambda key: ("pictures" in key, key.rpartition("/")[0] in ("text", "pictures"), key)  # noqa: E731
    rows = [_row(measured, start, key) for key in sorted(start, key=means_last)]
    header = ("task", "start", *LABELS.values(), "points of pictures on it")
    minutes = " and ".join(f"{minutes_of(_rewarded(results), [run])} with {label}" for run, label in LABELS.items())
    gain = lambda run, key: points(measured.values(run, key), [start[key]] * len(measured.seeds))  # noqa: E731
    text = (
        f"{verdict(measured)} Rewards on text alone add {gain('text', 'text/greedy')} points of the mean reward of "
        f"held-out problems to the start, greedily, and {gain('text', 'text/sampled')} sampled; in one run with "
        f"pictures they add {gain('joint', 'text/greedy')} and {gain('joint', 'text/sampled')}, and to the reward of "
        f"pictures {gain('joint', 'pictures/greedy')} and {gain('joint', 'pictures/sampled')}.\n\n"
        f"{markdown_table(header, rows)}\nMean rewards of {HELD_OUT} held-out problems of text and as many questions "
        f"about pictures, {SAMPLES} samples of each; one start, mean (lowest to highest) over {len(measured.seeds)} "
        f"seeds of reinforcement learning, whose minutes are {minutes}.\n"
    )
    return Summary(text, _figure(results, measured, start))


def with_means(record) -> dict[str, float]:
    """An evaluation with the means over the kinds of text and of pictures, ``text/WAY`` and ``pictures/WAY``."""
    means = dict(record)
    for way, (name, seen) in itertools.product(WAYS, (("text", False), ("pictures", True))):
        of_kinds = [record[key] for key in record if key.endswith(way) and key.startswith("pictures/") == seen]
        means[f"{name}/{way}"] = float(np.mean(of_kinds))
    return means


def verdict(measured: SeedRecords) -> str:
    """Whether text is lower with pictures than without them by more than the seeds without them differ, in words."""
    words = []
    for way in WAYS:
        alone, joint = (100 * np.array(measured.values(run, f"text/{way}")) for run in LABELS)
        points_more, span = joint.mean() - alone.mean(), np.ptp(alone)
        lower = "lower" if -points_more > span else "not lower"
        words.append(
            f"{way}, {lower} by more than the spread ({points_more:+.1f} points, where the seeds of text alone span "
            f"{span:.1f})"
        )
    return f"With pictures in the run, text ends {'; '.join(words)}."


def _row(measured: SeedRecords, start: dict[str, float], key: str) -> tuple[str, ...]:
    kind, _, way = key.rpartition("/")
    name = f"{kind}, mean of kinds" if kind in ("text", "pictures") else kind.replace("/", ": ")
    after = [spread(measured.values(run, key)) for run in LABELS]
    return f"{name}, {way}", f"{start[key]:.3f}", *after, measured.gain("joint", key, "text")


def _rewarded(results: dict[str, RunResult]) -> dict[str, RunResult]:
    return {name: result for name, result in results.items() if name not in (DESCRIBED, START)}


def _figure(results: dict[str, RunResult], measured: SeedRecords, start: dict[str, float]):
    figure, axes = new_figure(1, 2, height=4.0, width=11.0)
    lines = {"text, alone": ("text", "reward"), "text, beside pictures": ("joint", "reward/text")}
    lines |= {"counts": ("joint", "reward/shapes"), "words": ("joint", "reward/words")}
    for color, (label, (run, metric)) in zip(PALETTE, lines.items(), strict=False):
        style = "-" if label.startswith("text") else ":"
        seed_curves(axes[0, 0], _rewarded(results), run, metric, label=label, style=style, color=color)
    style_axes(axes[0, 0], title="Sampled answers of training", x="iteration", y="mean reward")
    legend(axes[0, 0])
    bars = SeedRecords(measured.seeds, {START: [start] * len(measured.seeds)} | measured.runs)
    rows = {START: "start", **LABELS}
    seed_bars(axes[0, 1], bars, rows, {"text/greedy": "text, greedy", "pictures/greedy": "pictures, greedy"})
    style_axes(axes[0, 1], title="Held out", x="mean reward, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(
    get_config,
    runs,
    summarize,
    prepare=prepare,
    held_out=held_out_configs,
    evaluate=lambda config, workdir: held_out_rewards(held_out_configs(), workdir),
)
