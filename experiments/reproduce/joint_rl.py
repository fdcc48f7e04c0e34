"""Does text learn less by rewards where pictures are in the same run?

Reproduces: joint reinforcement learning on text and pictures, and what pictures do to text (Kimi K2.5, sections 2.3 and
4.4.2, table 2), at the scale of a laptop. The tower, the pictures and their rewards are those of ``visual_rl.py``; the
decoder has three layers. It learns from random weights to describe pictures and to read words, and then to count shapes
too. A quarter of the rows are problems of characters by a teacher who gives most answers at once, without working them
out. From that one start each seed learns by rewards twice: from problems of text alone, and from the same problems in
the same order beside as many questions about pictures, in one run of twice the answers and as many updates.
Expected: what docs/reproductions.md has, whichever way it fell.

    python -m k2jax.reproduce joint_rl --workdir=runs/joint_rl
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.config.experiments import load_experiment
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, points, spread
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import BY_REWARDS, write_data
from k2jax.reproduce.seeds import SeedRecords, minutes_of
from k2jax.reproduce.study_file import load_study_file
from k2jax.tasks.characters.teacher import demonstrations

visual = load_study_file("visual_rl")

SEEDS = (0, 1, 2)
DESCRIBE_STEPS, SFT_STEPS, ITERATIONS = 500, 900, 30
SHOWN, REWARDED = "add3+sum6+sort6", "sum6+sort6"
"""Problems of the teacher, and of the rewards: the start adds none of the numbers of ``add3`` rightly, ever."""
TEXTS, DIRECT = 12_000, 0.7
PROMPTS = 32
"""Of text in an iteration, and as many of pictures where there are any."""
HELD_OUT, SAMPLES = 240, 2
"""Held-out problems of text, and questions about pictures; sampled answers of each."""
DESCRIBED, START = "described", "start"
LABELS = {"text": "text alone", "joint": "text and pictures"}
WAYS = {"greedy": "greedy", "sampled": "sampled"}
PICTURES = "pictures/"


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
    return {
        "shapes": task(dataset="pictures", options=shapes, max_tokens=24, weight=0.5),
        "words": task(dataset="pictures", options=words, max_tokens=24, weight=0.5),
    }


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


def evaluate(config, workdir):
    """Mean rewards of held-out problems of text and of pictures by kind, greedily and sampled."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    record = {}
    for each in map(resolve, held_out_configs()):
        record |= visual.rewards_of(evaluate_checkpoint(each, str(workdir))[1])
    return record


def summarize(results: dict[str, RunResult]) -> Summary:
    """Mean rewards of the start and of both ways from it, and the points between the two, seed by seed."""
    start = with_means(results[START].evaluation)
    measured = SeedRecords.of(results, LABELS, lambda result: with_means(result.evaluation))
    rows = [_row(measured, start, key) for key in sorted(start, key=_order)]
    header = ("task", "start", *LABELS.values(), "points of pictures on it")
    minutes = " and ".join(f"{minutes_of(_runs_of(results), [run])} ({label})" for run, label in LABELS.items())
    gain = lambda run, key: _gain(measured, start, run, key)  # noqa: E731
    text = (
        f"{verdict(measured)} Rewards on text alone add {gain('text', 'text/greedy')} points of the mean reward of "
        f"held-out problems to the start, greedily, and {gain('text', 'text/sampled')} sampled; in one run with "
        f"pictures they add {gain('joint', 'text/greedy')} and {gain('joint', 'text/sampled')}, and to the reward of "
        f"pictures {gain('joint', 'pictures/greedy')} and {gain('joint', 'pictures/sampled')}.\n\n"
        f"{markdown_table(header, rows)}\nMean rewards of {HELD_OUT} held-out problems of text and as many questions "
        f"about pictures, {SAMPLES} samples of each; one start, mean (lowest to highest) over {len(measured.seeds)} "
        f"seeds of reinforcement learning, which took {minutes} minutes a seed.\n"
    )
    return Summary(text, _figure(results, measured, start))


def with_means(record) -> dict[str, float]:
    """An evaluation with the means over the kinds of text and of pictures, ``text/WAY`` and ``pictures/WAY``."""
    means = dict(record)
    for way in WAYS:
        kinds = [key for key in record if key.endswith(f"/{way}")]
        for name, seen in (("text", False), ("pictures", True)):
            means[f"{name}/{way}"] = float(np.mean([record[key] for key in kinds if key.startswith(PICTURES) == seen]))
    return means


def verdict(measured: SeedRecords) -> str:
    """Whether text is lower with pictures than without them by more than the seeds without them differ, in words."""
    words = []
    for way, label in WAYS.items():
        alone, joint = (np.array(measured.values(run, f"text/{way}")) for run in LABELS)
        less, spread_of_seeds = 100 * (alone.mean() - joint.mean()), 100 * (alone.max() - alone.min())
        is_lower = "lower by more than the spread" if less > spread_of_seeds else "not lower by more than the spread"
        words.append(
            f"{label}, {is_lower} ({-less:+.1f} points, where the seeds of text alone span {spread_of_seeds:.1f})"
        )
    return f"With pictures in the run, text ends {'; '.join(words)}."


def _order(key: str) -> tuple[bool, bool, str]:
    """Text before pictures, and means behind their kinds."""
    return "pictures" in key, key.rpartition("/")[0] in ("text", "pictures"), key


def _row(measured: SeedRecords, start: dict[str, float], key: str) -> tuple[str, ...]:
    kind, _, way = key.rpartition("/")
    name = f"{kind}, mean of kinds" if kind in ("text", "pictures") else kind.replace("/", ": ")
    after = [spread(measured.values(run, key)) for run in LABELS]
    return f"{name}, {WAYS[way]}", f"{start[key]:.3f}", *after, measured.gain("joint", key, "text")


def _gain(measured: SeedRecords, start: dict[str, float], run: str, key: str) -> str:
    values = measured.values(run, key)
    return points(values, [start[key]] * len(values))


def _runs_of(results: dict[str, RunResult], but: Iterable[str] = (DESCRIBED, START)) -> dict[str, RunResult]:
    return {name: result for name, result in results.items() if name not in but}


def _figure(results: dict[str, RunResult], measured: SeedRecords, start: dict[str, float]):
    figure, axes = new_figure(1, 2, height=4.0, width=11.0)
    rewarded = _runs_of(results)
    seed_curves(axes[0, 0], rewarded, "text", "reward", label="text, alone", color=PALETTE[0])
    seed_curves(axes[0, 0], rewarded, "joint", "reward/text", label="text, beside pictures", color=PALETTE[1])
    seed_curves(axes[0, 0], rewarded, "joint", "reward/shapes", label="counts", style=":", color=PALETTE[2])
    seed_curves(axes[0, 0], rewarded, "joint", "reward/words", label="words", style=":", color=PALETTE[3])
    style_axes(axes[0, 0], title="Sampled answers of training", x="iteration", y="mean reward")
    legend(axes[0, 0])
    bars = SeedRecords(measured.seeds, {START: [start] * len(measured.seeds)} | measured.runs)
    rows = {START: "start", **LABELS}
    seed_bars(axes[0, 1], bars, rows, {"text/greedy": "text, greedy", "pictures/greedy": "pictures, greedy"})
    style_axes(axes[0, 1], title="Held out", x="mean reward, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
