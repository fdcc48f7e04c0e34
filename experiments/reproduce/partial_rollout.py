"""Long responses of an iteration continue in the next one, so that short ones need not wait for them.

Reproduces: partial rollouts (Kimi K2, section 3.3.4, after K1.5) and what they do to the use of the engine, at the
scale of a laptop. A teacher answers sums of three digits at once, or works them out and then checks the working by
subtracting, again and again with a constant probability: responses have 4 to 210 tokens, and most are short. Without a
cap an iteration ends with its longest response, while most slots are empty. With ``rl.rollout.token_cap`` a response
grows by at most this number of tokens, and a group trains once all its members are done; more prompts are in flight
than are trained on in an iteration. The engine is counted, not timed: decode steps, and the share of its slots that
gave a token, do not depend on the machine. What it costs is counted too: tokens that older weights sampled, and ids
that are computed again when a response continues.
Expected: with a cap of 32 tokens more used slots and fewer decode steps for a group than without one at as many groups,
with a cap of 48 hardly any difference; accuracy within the spread of the seeds. docs/reproductions.md has the figures.

    python -m k2jax.reproduce partial_rollout --workdir=runs/partial_rollout
"""

import itertools
from pathlib import Path
import random

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords
from k2jax.tasks.characters.dataset import ANSWER_MARK
from k2jax.tasks.characters.teacher import CHECK_MARK, checked_solution, solution

SEEDS = (0, 1, 2)
KIND, DEMONSTRATIONS, PROMPTS, HELD_OUT, SAMPLES = "add3", 24_000, 4000, 200, 2
DIRECT, AGAIN, MAX_CHECKS = 0.4, 0.4, 7  # share that is answered at once, probability of one more check, most checks
SFT_STEPS, ITERATIONS = 320, 12
RUNS = {"cap0": (0, 12), "wide": (0, 20), "cap96": (96, 16), "cap48": (48, 28), "cap32": (32, 37)}
"""The cap of each run [tokens], 0 for none, and its prompts in flight: more than are trained on in an iteration, with a
cap. Without one, more prompts alone use more slots, so that a cap is to be compared at as many trained groups."""
SLOTS, LONGEST, BIN = 64, 216, 8  # of the engine; tokens of a response, and of a bar
BEGIN = 4  # the iterations after this one are counted: groups then leave as fast as they come
LABELS = {run: f"cap of {cap} tokens" if cap else f"no cap, {prompts} prompts" for run, (cap, prompts) in RUNS.items()}
COLORS = dict(zip(RUNS, (PALETTE[5], PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[3]), strict=True))
COUNTED = {"groups": ("groups", 1), "steps": ("decode steps", 0), "steps_of_group": ("decode steps of a group", 1),
           "used": ("slots used", 3), "prefill": ("ids computed again or in prompts, of a sampled token", 2),
           "stale": ("tokens of older weights", 3), "mismatch": ("trainer and engine apart [nats]", 4)}  # fmt: skip
LEARNT = {"eval/greedy": ("greedy", 3), "eval/avg@2": ("Avg@2", 3), "eval/length": ("tokens, greedy", 1),
          "rollout_seconds": ("seconds of rollouts", 2), "rate": ("sampled tokens/s", 0),
          "seconds": ("seconds of an iteration", 2)}  # fmt: skip
RL = BY_REWARDS | {"train.steps": ITERATIONS, "train.batch_size": 8, "optimizer.learning_rate": 5e-4}


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = micro_config("sft", SFT_STEPS)
    config.data.sources = {"text": source(kind="chat", path="{workdir}/demonstrations.jsonl")}
    config.eval.every = 80
    config.rl.tasks = {"sums": task(dataset="characters", options=_options(PROMPTS), max_tokens=LONGEST)}
    config.rl.update({"updates": 4, "eval_prompts": 0, "rollout": {"slots": SLOTS, "max_length": 240}})
    return config


def held_out_configs():
    """The configuration of the evaluation."""
    config = get_config()
    config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
    return [config]


def _options(count: int) -> tuple[str, str]:
    return f"kinds={KIND}", f"count={count}"


def prepare(workdir: Path):
    """Writes the demonstrations."""
    rng = random.Random(0)
    conversations = (
        {"messages": [*each.instruction, {"role": "assistant", "content": _demonstrated(each, rng)}]}
        for each in load_tasks("characters", _options(DEMONSTRATIONS))
    )
    write_data(workdir, {"demonstrations.jsonl": conversations})


def _demonstrated(problem, rng: random.Random) -> str:
    """A right answer: at once, or behind a working and some checks, which take either number away in turn."""
    if rng.random() < DIRECT:
        return solution(problem, "direct")
    checks = 0
    while checks < MAX_CHECKS and rng.random() < AGAIN:
        checks += 1
    text, mark, answer = checked_solution(problem, 2).rpartition(ANSWER_MARK)
    working, *both = text.split(CHECK_MARK)
    return CHECK_MARK.join([working, *itertools.islice(itertools.cycle(both), checks)]) + mark + answer


def runs():
    """The start, which all seeds share, and for each seed a run with every cap."""
    data = {"data.sources.text.path": "{workdir}/demonstrations.jsonl"}
    from_start = RL | data | {"init_from": "{workdir}/start"}
    by_rewards = {
        f"seed{seed}_{run}": from_start
        | {"train.seed": seed, "rl.rollout.token_cap": cap, "rl.rollout.prompts": prompts}
        for seed in SEEDS
        for run, (cap, prompts) in RUNS.items()
    }
    return {"start": data} | by_rewards


def evaluate(config, workdir):
    """Accuracy on held-out problems, greedy and sampled, and how many sampled responses have which length."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(*held_out_configs()), str(workdir))
    lengths = [each.sampled_tokens for group in groups for each in group.trajectories[1:]]
    return held_out.record(groups) | {"lengths": np.histogram(lengths, _bars())[0].tolist()}


def _bars() -> np.ndarray:
    return np.arange(0, LONGEST + BIN, BIN)


def summarize(results: dict[str, RunResult]) -> Summary:
    """Use of the engine and what it costs, then accuracy and time, by cap."""
    measured = SeedRecords.of(results, RUNS, _record)
    counted, learnt = _table(measured, COUNTED), _table(measured, LEARNT)
    best = max((run for run, (cap, _) in RUNS.items() if cap), key=lambda run: np.mean(measured.values(run, "used")))
    of_both = lambda key, digits=3: " and ".join(measured.spread(run, key, digits) for run in ("wide", best))  # noqa: E731
    text = (
        f"With {LABELS['wide']} and with a {LABELS[best]}, {of_both('groups', 1)} groups are trained on in an "
        f"iteration, {of_both('used')} of the slots give a token, and a trained group costs "
        f"{of_both('steps_of_group', 1)} decode steps. Of held-out problems {of_both('eval/greedy')} are then solved "
        f"greedily, and {results['start'].evaluation['eval/greedy']:.3f} at the start.\n\n{counted}\n{learnt}\n"
        f"Mean (lowest to highest) over {len(measured.seeds)} seeds, for an iteration, of the iterations after the "
        f"first {BEGIN}; {SLOTS} slots, {HELD_OUT} held-out problems. Seconds are wall time.\n"
    )
    return Summary(text, _figure(results, measured))


def _table(measured: SeedRecords, columns: dict[str, tuple[str, int]]) -> str:
    rows = [
        (label, *(measured.spread(run, key, digits) for key, (_, digits) in columns.items()))
        for run, label in LABELS.items()
    ]
    return markdown_table(("run", *(title for title, _ in columns.values())), rows)


def _record(result: RunResult) -> dict[str, float]:
    """What the tables say of a run."""
    later = [record for record in result.records if record["step"] > BEGIN]
    total = lambda key: float(sum(record[key] for record in later))  # noqa: E731
    trained = [record["tokens/mismatch"] for record in later if "tokens/mismatch" in record]
    return {
        "groups": total("groups") / len(later),
        "steps": total("decode_steps") / len(later),
        "steps_of_group": total("decode_steps") / total("groups"),
        "used": sum(record["slots_used"] * record["decode_steps"] for record in later) / total("decode_steps"),
        "prefill": total("prefill_tokens") / total("sampled_tokens"),
        "stale": total("stale_tokens") / len(later),
        "mismatch": float(np.mean(trained)),
        "rollout_seconds": total("rollout_seconds") / len(later),
        "rate": total("sampled_tokens") / total("rollout_seconds"),
        "seconds": (total("rollout_seconds") + total("train_seconds") + total("sync_seconds")) / len(later),
    } | result.evaluation


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(2, 2, height=7.0)
    counts = results["start"].evaluation["lengths"]
    axes[0, 0].bar(_bars()[:-1], counts, BIN, align="edge", color=PALETTE[5], edgecolor="white")
    for run, (cap, _) in RUNS.items():
        if cap:
            axes[0, 0].axvline(cap, color=COLORS[run], linewidth=1.5, label=LABELS[run])
        line = {"label": LABELS[run], "color": COLORS[run], "linewidth": 1.2}
        seed_curves(axes[0, 1], _seeds(results), run, "slots_used", **line)
        seed_curves(axes[1, 1], _seeds(results), run, "accuracy", **line)
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_ylim(bottom=0.5)
    style_axes(axes[0, 0], title="Sampled responses at the start", x="tokens", y="responses")
    legend(axes[0, 0])
    axes[0, 1].set_ylim(0, 1)
    style_axes(axes[0, 1], title="Slots that give a token", x="iteration", y="share of slots, over decode steps")
    style_axes(axes[1, 1], title="Sampled responses that are right", x="iteration", y="share")
    legend(axes[1, 1])
    for place, run in enumerate(RUNS):
        values = measured.values(run, "steps_of_group")
        axes[1, 0].barh(place, np.mean(values), 0.6, color=COLORS[run])
        axes[1, 0].plot(values, [place] * len(values), "o", color="black", markersize=3)
    axes[1, 0].set_yticks(range(len(RUNS)), LABELS.values())
    axes[1, 0].invert_yaxis()
    style_axes(axes[1, 0], title="Decode steps for a trained group", x="steps: mean, and a dot for each seed")
    return figure


def _seeds(results: dict[str, RunResult]) -> dict[str, RunResult]:
    return {run: result for run, result in results.items() if run != "start"}


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
