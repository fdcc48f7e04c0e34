"""What filtering synthetic trajectories is worth: unseen tools after fine-tuning on what a judge kept, and on all.

Reproduces: the claim behind Kimi K2's synthesis of tool use (section 3.1.1) at the scale of a laptop: trajectories in
simulated worlds, filtered by a judge, teach tools that training has never shown, and rewards in the same worlds teach
more. The worlds are the small ones of ``k2jax.tasks.worlds.counters``: three tools of invented names in the prompt,
and a user who names one of them with its arguments. Whoever solves a task of another world has to copy what it has
never seen, and to tell what the tool answered. A pretraining on lines of such words, all of which come again,
precedes.
Fixed before the runs: a program plays the agent and makes a mistake in half of 6,000 dialogues in 1,000 worlds, of
five kinds in equal shares (another tool, another argument, no call though it says so, nothing told, gives up at once);
a judge, of whose verdicts a tenth are wrong, filters them; as many conversations of each of three sorts are fine-tuned
on: all, those that the judge kept, and those that were right by the world's state (the ceiling). Rewards continue from
the second for 20 iterations. Measured: 300 tasks of 300 unseen worlds, executed and verified exactly, greedily and at
temperature 1 (four episodes of each); the claim is about the latter, which is how a policy acts in training, over the
seeds 0, 1 and 2.
Expected: 20 points and more between filtered and unfiltered. Not measured: docs/reproductions.md says what was tried.

    python -m k2jax.reproduce synthetic_tools --workdir=runs/synthetic_tools
"""

import asyncio
import json
from pathlib import Path
import random
import string

import numpy as np

from k2jax.config import resolve, source, task
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds, minutes_of
from k2jax.synthesize.pipeline import Machines, Synthesis
from k2jax.synthesize.settings import SynthesisConfig, ToolUseConfig
from k2jax.tasks.worlds.counters import invented

SEEDS = (0, 1, 2)
SYNTHESIS = SynthesisConfig(
    seed=7,  # its worlds have other numbers than those that the dataset draws
    tool_use=ToolUseConfig(
        size="small", tools=3000, agents=1000, tasks=6000, mistakes=0.5, failures=0.0, judge_mistakes=0.1
    ),
)
TEXTS, COPY_STEPS, SFT_STEPS, ITERATIONS = 60_000, 720, 160, 20  # texts and steps of pretraining
HELD_OUT, SAMPLES = 300, 4
AVERAGE, PASS = f"eval/avg@{SAMPLES}", f"eval/pass@{SAMPLES}"
KINDS = ("set", "read", "new", "drop", "copy")
LABELS = {
    "sft_unfiltered": "SFT on all",
    "sft_judged": "SFT on what the judge kept",
    "sft_exact": "SFT on what is right (ceiling)",
    "rl": "RL from the second",
}


def get_config():
    """The model, and the tasks of reinforcement learning and of the evaluation."""
    config = micro_config("pretrain", COPY_STEPS)
    config.data.sources = {"texts": source(kind="jsonl")}
    config.data.chat_format = "compact"
    config.eval.update({"every": 50, "rows": 24})
    options = ("size=small", "count=4000", "worlds=2000")
    config.rl.tasks = {"worlds": task(dataset="worlds", options=options, max_tokens=24, steps=3)}
    config.rl.rollout.update({"prompts": 32, "max_length": 160})
    config.rl.updates = 2
    config.rl.eval_prompts = 0
    return config


def held_out_configs():
    """The configuration of the evaluation."""
    config = get_config()
    options = ("size=small", f"count={HELD_OUT}", f"worlds={HELD_OUT}")
    config.rl.tasks = {"worlds": task(dataset="worlds", options=options, max_tokens=24, steps=3)}
    config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
    return [config]


def prepare(workdir: Path):
    """Writes the texts of pretraining, runs the synthesis, and writes as many conversations of each sort."""
    write_data(workdir, {"texts.jsonl": ({"text": text_of(number)} for number in range(TEXTS))})
    if not (workdir / "exact.jsonl").exists():
        asyncio.run(Synthesis(workdir / "synthesis", SYNTHESIS, Machines(workers=1)).run())
        write_data(workdir, sorts(workdir / "synthesis"))


def text_of(number: int) -> str:
    """One to three lines of words, and the same lines again in another order."""
    rng = random.Random(f"copying {number}")
    words = lambda: " ".join(rng.choice((_name, _key, _number))(rng) for _ in range(rng.randint(1, 3)))  # noqa: E731
    lines = [f"{_name(rng)} {words()}" for _ in range(rng.randint(1, 3))]
    return "\n".join([*lines, *rng.sample(lines, len(lines))])


def _name(rng: random.Random) -> str:
    return f"{rng.choice(KINDS)}_{invented(rng, 1)[0]}"


def _key(rng: random.Random) -> str:
    return f"{rng.choice(string.ascii_lowercase)}{_number(rng)}"


def _number(rng: random.Random) -> str:
    return str(rng.randint(10, 99))


def sorts(folder: Path) -> dict[str, list[dict]]:
    """Conversations of each sort, equally many, in an order that does not depend on the verdicts."""
    rng = np.random.default_rng(0)
    read = lambda name: [json.loads(line) for line in (folder / name).read_text().splitlines()]  # noqa: E731
    everything, judged = read("unfiltered.jsonl"), read("sft.jsonl")
    exact = [record for record in everything if record["exact"]["solved"]]
    found = {"unfiltered": everything, "judged": judged, "exact": exact}
    count = min(map(len, found.values()))
    return {
        f"{name}.jsonl": [{"messages": records[place]["messages"]} for place in rng.permutation(len(records))[:count]]
        for name, records in found.items()
    }


def runs():
    """Pretraining of each seed, fine-tuning on each sort, then rewards."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    path = lambda name: {"data.sources.texts.path": f"{{workdir}}/{name}.jsonl"}  # noqa: E731
    chat = {"stage": "sft", "data.sources.texts.kind": "chat", "init_from": f"{{workdir}}/seed{seed}_pretrained"}
    chat |= {"train.steps": SFT_STEPS}
    by_rewards = BY_REWARDS | {"optimizer.learning_rate": 5e-4, "train.steps": ITERATIONS, "rl.rollout.prompts": 16}
    return {
        "pretrained": path("texts"),
        **{f"sft_{name}": chat | path(name) for name in ("unfiltered", "judged", "exact")},
        "rl": by_rewards | {"init_from": f"{{workdir}}/seed{seed}_sft_judged"},
    }


def evaluate(config, workdir):
    """Tasks of unseen worlds that are solved, by what is asked for too; none of pretraining."""
    if config.stage == "pretrain":
        return {}
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(*held_out_configs()), str(workdir))
    record = held_out.record(groups)
    for kind in KINDS:
        asked = [group for group in groups if group.prompt.task.instruction[1]["content"].split("_")[0] == kind]
        right = [held_out.is_right(group, sample) for group in asked for sample in range(1, 1 + SAMPLES)]
        record[f"{AVERAGE}/{kind}"] = float(np.mean(right))
    return record


def summarize(results: dict[str, RunResult]) -> Summary:
    """What each way solves, and the points between them."""
    measured = SeedRecords.of(results, LABELS)
    gain = lambda run, start, key=AVERAGE: measured.gain(run, key, start)  # noqa: E731
    header = ("run", "greedy", f"Avg@{SAMPLES}", "points over all", f"pass@{SAMPLES}", *KINDS)
    rows = [
        (label, measured.spread(run, "eval/greedy"), measured.spread(run, AVERAGE),
         "" if run == "sft_unfiltered" else gain(run, "sft_unfiltered"), measured.spread(run, PASS),
         *(measured.spread(run, f"{AVERAGE}/{kind}") for kind in KINDS))
        for run, label in LABELS.items()
    ]  # fmt: skip
    text = (
        f"Fine-tuned on what the judge kept, the model solves {gain('sft_judged', 'sft_unfiltered')} points more of "
        f"the sampled episodes with unseen tools than fine-tuned on as many of all, and "
        f"{gain('sft_judged', 'sft_unfiltered', 'eval/greedy')} of greedy ones. Rewards add "
        f"{gain('rl', 'sft_judged')} and {gain('rl', 'sft_judged', 'eval/greedy')}.\n\n"
        f"{markdown_table(header, rows)}\n{HELD_OUT} held-out tasks of as many unseen worlds, by what is asked for of "
        f"sampled episodes; mean (lowest to highest) over {len(measured.seeds)} seeds. Fine-tuning took "
        f"{minutes_of(results, ['sft_judged'])} minutes of training time, rewards {minutes_of(results, ['rl'])}.\n"
    )
    return Summary(text, _figure(results, measured))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0, width=11.0)
    for run, color in zip(list(LABELS)[:3], PALETTE, strict=False):
        seed_curves(axes[0, 0], results, run, "loss", label=LABELS[run], color=color)
    style_axes(axes[0, 0], title="Fine-tuning", x="step", y="loss [nats per token]")
    legend(axes[0, 0])
    seed_bars(axes[0, 1], measured, LABELS, {"eval/greedy": "greedy", AVERAGE: f"Avg@{SAMPLES}"})
    style_axes(axes[0, 1], title="Tasks of unseen worlds", x="share solved, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
