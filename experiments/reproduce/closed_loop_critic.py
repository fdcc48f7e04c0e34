"""The policy as its own judge: verdicts with and without the closed loop.

Reproduces: closed-loop refinement of the critic (Kimi K2, section 3.2.2) at the scale of a laptop. A model of a million
parameters is fine-tuned on problems of characters, by an imperfect teacher, and on a judge's dialogues about solutions
with one wrong character in the answer. Then two runs train it on the problems: one that never sees a verdict again, and
one that is also rewarded for right verdicts on pairs of its own responses, in both orders. Each is measured on the same
held-out pairs, sampled from the fine-tuned start, and on pairs of its own responses, in both orders and greedily.
Expected: the closed loop raises the accuracy of verdicts; without it they stay, or get worse as the policy moves away.
Right responses are worked out more often than wrong ones, so that a judge gains by liking length alone: the accuracy on
pairs of one style, worked or direct, and the bias for the longer and for the first answer stand beside.

    python -m k2jax.reproduce closed_loop_critic --workdir=runs/closed_loop_critic
"""

import json
from pathlib import Path

from k2jax.config import defaults, resolve, source, task
from k2jax.env.critic.preferences import character_preferences, judge_dialogues
from k2jax.env.critic.refinement import VerifiedPair, draw_pairs, verified_pairs
from k2jax.env.critic.verdict_metrics import verdict_metrics
from k2jax.env.registry import load_tasks
from k2jax.env.task import Task
from k2jax.env.tasks.teacher import demonstrations, style_of
from k2jax.report.files import write_atomic
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Summary, curve, points, spread

SEEDS = (0, 1, 2)
KINDS = "add3+sum6+sort6"
COUNT, DIRECT = 20_000, 0.5  # problems, and the share of the teacher's answers without working
SFT_STEPS, ITERATIONS = 540, 30
PAIRS = 400
RUNS = {"sft": "fine-tuned start", "without": "RL without closed loop", "with": "RL with closed loop"}
SETS = {"fixed": "pairs of the start", "own": "own pairs", "one_style": "pairs of the start, one style"}
SHARES = ("accuracy", "both_right", "ties", "unparsable", "first", "longer")
HEADER = ("run", "pairs", "verdicts right", "points over the start", "right in both orders", "ties", "unparsable",
          "first place", "longer answer")  # fmt: skip


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = defaults("sft", model="micro")
    config.data.sources = {"problems": source(kind="chat"), "judge": source(kind="chat")}
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    config.data.held_out = 0.02
    config.train.batch_size = 16
    config.train.steps = SFT_STEPS
    config.optimizer.learning_rate = 1e-2
    config.router.bias_rate = 5e-2
    config.router.bias_rate_final = 1e-3
    config.eval.every = 120
    config.eval.sample_tokens = 0
    config.checkpoint.every = 100
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    options = (f"kinds={KINDS}", f"count={COUNT}")
    config.rl.tasks = {"problems": task(dataset="characters", options=options, max_tokens=48)}
    config.rl.rollout.update({"prompts": 32, "max_length": 128})
    config.rl.critic.update({"format": "compact", "share": 1.0, "max_tokens": 2})
    config.rl.loss.update({"name": "k2", "tau": 0.1})  # every response counts alike, a verdict of two tokens too
    config.rl.updates = 2
    config.rl.skip_flat_groups = True
    config.rl.eval_prompts = PAIRS
    config.rl.eval_samples = 4
    return config


def prepare(workdir: Path):
    """Writes the demonstrations, and a judge's dialogues about other problems."""
    problems = load_tasks("characters", (f"kinds={KINDS}", f"count={COUNT}"))
    judged = load_tasks("characters", (f"kinds={KINDS}", f"count={COUNT}", "seed=1"))
    files = {
        "problems.jsonl": demonstrations(problems, direct=DIRECT),
        "judge.jsonl": judge_dialogues(character_preferences(judged, direct=DIRECT), "compact"),
    }
    for name, records in files.items():
        if not (workdir / name).exists():
            write_atomic(workdir / name, "".join(json.dumps(record) + "\n" for record in records))


def runs():
    """For each seed the start and the two ways to go on."""
    paths = {f"data.sources.{name}.path": f"{{workdir}}/{name}.jsonl" for name in ("problems", "judge")}
    reinforce = paths | {
        "stage": "rl",
        "train.steps": ITERATIONS,
        "optimizer.learning_rate": 5e-4,
        "optimizer.weight_decay": 0.0,
        "optimizer.schedule.warmup_steps": 2,
        "router.bias_rate": 0.0,
        "router.bias_rate_final": 0.0,
        "rl.eval_prompts": 0,
        "checkpoint.every": 10,
    }
    all_runs = {}
    for seed in SEEDS:
        start = {"init_from": f"{{workdir}}/seed{seed}_sft"}
        of_seed = {"sft": paths, "without": reinforce | start | {"rl.critic.share": 0.0}, "with": reinforce | start}
        all_runs |= {f"seed{seed}_{name}": run | {"train.seed": seed} for name, run in of_seed.items()}
    return all_runs


def evaluate(config, workdir):
    """Held-out accuracy of answers, and metrics of verdicts on pairs of the start, of one style, and of its own."""
    from k2jax.rl.evaluation import evaluate_checkpoint, judge_with_checkpoint

    study = resolve(get_config())
    held_out, groups = evaluate_checkpoint(study, str(workdir))
    of_prompts = [verified_pairs(group.prompt.task, group.trajectories) for group in groups]
    own = draw_pairs(of_prompts, PAIRS, seed=0, fits=lambda pair: True)
    file = workdir.parent / f"seed{config.train.seed}_pairs.json"
    if workdir.name.endswith("_sft"):
        write_atomic(file, json.dumps([(pair.task.to_json(), pair.better, pair.worse) for pair in own]))
    stored = [(Task.from_json(line), better, worse) for line, better, worse in json.loads(file.read_text())]
    fixed = [VerifiedPair(*pair, key=(0, number), samples=(0, 1)) for number, pair in enumerate(stored)]
    judged = judge_with_checkpoint(study, str(workdir), [*fixed, *own])
    of_fixed = list(zip(fixed, judged, strict=False))
    sets = {
        "fixed": [each for _, each in of_fixed],
        "own": judged[len(fixed) :],
        "one_style": [each for pair, each in of_fixed if style_of(pair.better) == style_of(pair.worse)],
    }
    record = {f"{name}/{key}": value for name, of in sets.items() for key, value in verdict_metrics(of).items()}
    return record | {"greedy": held_out.record(groups)["eval/greedy"]}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Verdicts of every run over seeds, by set of pairs, and the points that they gain over the start's."""
    seeds = sorted({result.config.train.seed for result in results.values()})
    found = {run: [results[f"seed{seed}_{run}"].evaluation for seed in seeds] for run in RUNS}
    rows = []
    for name, label in SETS.items():
        start = [each.get(f"{name}/accuracy") for each in found["sft"]]
        for run, of_seeds in found.items():
            shares = [[each.get(f"{name}/{key}") for each in of_seeds] for key in SHARES]
            known = [both for both in zip(shares[0], start, strict=True) if None not in both]
            gain = points(*map(list, zip(*known, strict=True))) if known else "none"
            rows.append((RUNS[run], label, spread(shares[0]), gain, *(spread(share) for share in shares[1:])))
    answers = ", ".join(f"{RUNS[run]} {spread([each['greedy'] for each in of])}" for run, of in found.items())
    counts = ", ".join(f"{name} {spread([e.get(f'{name}/pairs') for e in found['sft']], 0)}" for name in SETS)
    text = (
        f"{markdown_table(HEADER, rows)}\nVerdicts on held-out pairs of a right and a wrong response, greedy, in both "
        f"orders; mean (lowest to highest) over {len(seeds)} seeds; pairs at the start: {counts}. First place and "
        "longer answer: shares of the verdicts that choose one answer, of two lengths for the latter; a judge without "
        f"a bias of place has 0.5. Held-out problems solved greedily: {answers}.\n"
    )
    return Summary(text, _figure(results, found, seeds))


def _figure(results: dict[str, RunResult], found: dict, seeds: list[int]):
    figure, axes = new_figure(1, 2, height=4.0)
    for number, seed in enumerate(seeds):
        for key, color in (("accuracy", PALETTE[0]), ("both_right", PALETTE[1])):
            x, y = curve(results[f"seed{seed}_with"], f"refinement/{key}")
            label = {"accuracy": "right", "both_right": "right in both orders"}[key] if number == 0 else None
            axes[0, 0].plot(x, y, color=color, alpha=0.7, label=label)
    style_axes(axes[0, 0], title="Sampled verdicts in the closed loop", x="iteration", y="share")
    legend(axes[0, 0])
    for place, (run, label) in enumerate(RUNS.items()):
        for number, name in enumerate(SETS):
            shares = [each[f"{name}/accuracy"] for each in found[run] if f"{name}/accuracy" in each]
            at = [number + 0.2 * (place - 1)] * len(shares)
            axes[0, 1].plot(at, shares, "o", color=PALETTE[place], label=label if number == 0 else None)
    axes[0, 1].axhline(0.5, color="0.6", linewidth=1)
    axes[0, 1].set_xticks(range(len(SETS)), [label.replace(", ", ",\n") for label in SETS.values()])
    style_axes(axes[0, 1], title="Held-out verdicts that are right, by seed", y="share")
    legend(axes[0, 1])
    return figure
