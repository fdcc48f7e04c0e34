"""A small Kimi K2 learns to solve problems with tools over several turns: imperfect demonstrations, then rewards.

Reproduces: the order of Kimi K2's agentic training, at the scale of a laptop: fine-tuning on demonstrations of tool use
(Kimi K2, section 3.1.1), then reinforcement learning in environments of several turns (sections 3.2 and 3.3), of whose
episodes only the last answer is judged. A calculator does one operation at a time, and a store gives the value of one
key: chains of two operations, sums of two stored numbers, and keys that lead to keys take two to four turns. The
contents of the store are in no prompt. The teacher calls the tools for easier problems of a single call, and for a part
of the problems; most of those it answers at once, which nobody can learn. Beside reinforcement learning stands as much
more fine-tuning.
Expected: 20 points and more of held-out success over a start of 20 to 60 %; docs/reproductions.md has the figures.

    python -m k2jax.reproduce tools --workdir=runs/tools
"""

from pathlib import Path

import numpy as np

from k2jax.config import resolve, source, task
from k2jax.env.registry import load_tasks
from k2jax.env.tasks.tool_teacher import tool_demonstrations
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Summary, curve, spread
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.loading import load_study
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.trajectory import Trajectory

base = load_study("nano_post_training")
KINDS = {"calc2": "two operations", "kv2": "sum of two values", "hop2": "key to key to number"}
EASIER = "calc1+hop1"  # always demonstrated with tools
TEACHERS = ("easier", "imperfect")  # sources of demonstrations
DIRECT = 0.7  # share of the teacher's answers without a call
DEMONSTRATIONS, SFT_STEPS, ITERATIONS = 24_000, 720, 40
HELD_OUT, SAMPLES = 500, 4  # problems, and sampled episodes of each
AVERAGE, PASS = f"eval/avg@{SAMPLES}", f"eval/pass@{SAMPLES}"
LABELS = {"sft": "SFT, the start", "rl": "RL", "more_sft": "as much more SFT"}
HEADER = ("run", "greedy", "points over SFT", f"Avg@{SAMPLES}", "points over SFT", f"pass@{SAMPLES}",
          "episodes with a call", "right with calls", "right without", "calls", "tokens")  # fmt: skip
KEYS = (PASS, "called", "right_called", "right_direct")
RL = base.RL | {"optimizer.learning_rate": 5e-4, "train.steps": ITERATIONS}
MORE = {"optimizer.learning_rate": 1e-3, "train.steps": base.get_config().rl.updates * ITERATIONS}


def get_config():
    """The model and rates of ``nano_post_training``, and the data and tasks that all runs share."""
    config = base.get_config()
    config.stage = "sft"
    config.data.sources = {name: source(kind="chat") for name in TEACHERS}
    config.data.chat_format = "compact"
    config.train.steps = SFT_STEPS
    config.eval.every = 40
    config.rl.tasks = {"tools": task(dataset="tool_use", options=_options(20_000), max_tokens=32, steps=6)}
    config.rl.rollout.update({"prompts": 32, "max_length": 160})
    config.rl.eval_prompts = 0
    return config


def held_out_configs():
    """The configuration of the evaluation, whose tasks are loaded before the first run."""
    config = get_config()
    config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
    return [config]


def _options(count: int, kinds: str = "+".join(KINDS)) -> tuple[str, str]:
    return f"kinds={kinds}", f"count={count}"


def prepare(workdir: Path):
    """Writes the demonstrations."""
    easier = load_tasks("tool_use", _options(DEMONSTRATIONS // 2, EASIER))
    problems = load_tasks("tool_use", _options(DEMONSTRATIONS))
    files = {"easier": tool_demonstrations(easier, direct=0.0), "imperfect": tool_demonstrations(problems, DIRECT)}
    write_data(workdir, {f"{name}.jsonl": records for name, records in files.items()})


def runs():
    """For each seed the start, and what goes on from it."""
    return for_seeds(base.SEEDS, _chain)


def _chain(seed: int) -> dict[str, dict]:
    data = {f"data.sources.{name}.path": f"{{workdir}}/{name}.jsonl" for name in TEACHERS}
    from_start = data | {"init_from": f"{{workdir}}/seed{seed}_sft"}
    return {"sft": data, "rl": RL | from_start, "more_sft": from_start | MORE}


def evaluate(config, workdir):
    """Success on held-out problems, greedily and sampled, by kind too, and what the sampled episodes do with tools."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(*held_out_configs()), str(workdir))
    scored = [
        (group.prompt.task.domain, calls_of(group.trajectories[sample]), held_out.is_right(group, sample))
        for group in groups
        for sample in range(1, 1 + SAMPLES)
        if group.trajectories[sample].reward is not None
    ]
    record = held_out.record(groups) | {"calls": float(np.mean([calls for _, calls, _ in scored]))}
    record["called"] = float(np.mean([calls > 0 for _, calls, _ in scored]))
    for key, with_calls in (("right_called", True), ("right_direct", False)):
        marks = [right for _, calls, right in scored if (calls > 0) == with_calls]
        record[key] = float(np.mean(marks)) if marks else None
    for kind in KINDS:
        record[f"{AVERAGE}/{kind}"] = float(np.mean([right for domain, _, right in scored if domain == kind]))
    return record


def calls_of(trajectory: Trajectory) -> int:
    """How many calls of tools the model has written in an episode."""
    return sum(len(node.message.get("tool_calls") or ()) for node in trajectory.nodes)


def summarize(results: dict[str, RunResult]) -> Summary:
    """Every run's success over seeds, and the points that it adds to the start, in all and by kind."""
    measured = SeedRecords.of(results, LABELS)
    gain = lambda run, key: measured.gain(run, key, "sft")  # noqa: E731
    rows = [
        (label, measured.spread(run, "eval/greedy"), gain(run, "eval/greedy"), measured.spread(run, AVERAGE),
         gain(run, AVERAGE), *(measured.spread(run, key) for key in KEYS), measured.spread(run, "calls", 2),
         measured.spread(run, "eval/length", 1))
        for run, label in LABELS.items()
    ]  # fmt: skip
    kinds = [
        (label, *(measured.spread(run, f"{key}/{kind}") for kind in KINDS for key in ("eval/greedy", AVERAGE)))
        for run, label in LABELS.items()
    ]
    of_kinds = ("run", *(f"{label}, {way}" for label in KINDS.values() for way in ("greedy", f"Avg@{SAMPLES}")))
    seconds = [
        sum(curve(results[f"seed{seed}_{run}"], "seconds")[1][-1] for run in ("sft", "rl")) for seed in measured.seeds
    ]
    text = (
        f"Reinforcement learning adds {gain('rl', 'eval/greedy')} points of greedy success and {gain('rl', AVERAGE)} "
        f"of Avg@{SAMPLES} to a start that solves {measured.spread('sft', 'eval/greedy')} greedily and "
        f"{measured.spread('sft', AVERAGE)} sampled.\n\n{markdown_table(HEADER, rows)}\n"
        f"By kind of problem:\n\n{markdown_table(of_kinds, kinds)}\n"
        f"{HELD_OUT:,} held-out problems; mean (lowest to highest) over {len(measured.seeds)} seeds. Calls and what is "
        f"right with and without them are of sampled episodes, tokens of greedy ones. Fine-tuning and reinforcement "
        f"learning took {spread([each / 60 for each in seconds], 1)} minutes of training time a seed.\n"
    )
    return Summary(text, _figure(results, measured))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0)
    seed_curves(axes[0, 0], results, "rl", "accuracy", label="right", color=PALETTE[0])
    style_axes(axes[0, 0], title="Sampled episodes of training that are right", x="iteration", y="share")
    axes[0, 0].set_ylim(0, 1.02)
    legend(axes[0, 0])
    seed_bars(axes[0, 1], measured, LABELS, {"eval/greedy": "greedy", AVERAGE: f"Avg@{SAMPLES}"})
    style_axes(axes[0, 1], title="Held-out success", x="share of problems, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure
