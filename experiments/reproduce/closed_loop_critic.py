"""The policy as its own judge: verdicts with and without the closed loop.

Reproduces: closed-loop refinement of the critic (Kimi K2, section 3.2.2) at the scale of a laptop. A model of a million
parameters is fine-tuned on sorting six letters without working, and on a judge's dialogues about wrong answers:
the judge writes what stands at each place up to the first at which the answers differ, and then its verdict. Then two
runs train it on the problems: one that never sees a verdict again, and one that is also rewarded for right verdicts on
pairs of its own responses, in both orders. Each is measured on the same held-out pairs, sampled from the fine-tuned
start, and on pairs of its own responses, in both orders and greedily, with the bias for a place and for length beside.
Expected: no gain from the closed loop. Fine-tuning ends off chance on one seed of three, and there the run without
the loop gains more on the start's pairs (docs/reproductions.md).

    python -m k2jax.reproduce closed_loop_critic --workdir=runs/closed_loop_critic
"""

import itertools
import json
from pathlib import Path
import random

from k2jax.agents.dataset import load_tasks
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS, Comparison, question_of
from k2jax.agents.judges.refinement import VerifiedPair, draw_pairs, verified_pairs
from k2jax.agents.judges.verdict_metrics import verdict_metrics
from k2jax.agents.task import Task
from k2jax.config import resolve, source, task
from k2jax.files.atomic import write_atomic
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.tasks.characters.dataset import LETTERS
from k2jax.tasks.characters.teacher import demonstrations

SEEDS = (0, 1, 2)
KINDS, COUNT = "sort6", 20_000
SFT_STEPS, ITERATIONS = 400, 40
PROBLEMS, PAIRS = 1200, 400  # held out: of the former few are answered wrongly
RUNS = {"sft": "fine-tuned start", "without": "RL without closed loop", "with": "RL with closed loop"}
SETS = {"fixed": "pairs of the start", "own": "own pairs"}
SHARES = ("accuracy", "both_right", "ties", "unparsable", "first", "longer")
HEADER = ("run", "pairs", "verdicts right", "points over the start", "right in both orders", "ties", "unparsable",
          "first place", "longer answer")  # fmt: skip
END = "."  # stands in a judge's working where an answer has ended


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = micro_config("sft", SFT_STEPS)
    config.data.sources = {"problems": source(kind="chat"), "judge": source(kind="chat", weight=3.0)}
    config.data.held_out = 0.02
    config.eval.every = 100
    options = (f"kinds={KINDS}", f"count={COUNT}")
    config.rl.tasks = {"problems": task(dataset="characters", options=options, max_tokens=12)}
    config.rl.rollout.update({"prompts": 32, "max_length": 80})
    config.rl.critic.update({"format": "compact", "share": 1.0, "max_tokens": 34})
    config.rl.loss.update({"name": "k2", "tau": 0.1})  # every response counts alike, however long
    config.rl.updates = 2
    config.rl.eval_prompts = 400
    config.rl.eval_samples = 4
    return config


def held_out_configs():
    """The configuration of the evaluation, whose tasks are loaded before the first run."""
    config = get_config()
    config.rl.eval_prompts = PROBLEMS
    return [config]


def prepare(workdir: Path):
    """Writes the demonstrations, and a judge's dialogues about other problems."""
    problems = load_tasks("characters", (f"kinds={KINDS}", f"count={COUNT}"))
    judged = load_tasks("characters", (f"kinds={KINDS}", f"count={COUNT}", "seed=1"))
    files = {"problems.jsonl": demonstrations(problems, direct=1.0), "judge.jsonl": judge_dialogues(judged)}
    write_data(workdir, files)


def judge_dialogues(tasks, seed: int = 0):
    """A right answer and one with a mistake, in both orders, with the judge's working and its verdict."""
    rng, judge = random.Random(seed), JUDGE_FORMATS["compact"]
    for each in tasks:
        right = each.metadata["answer"]
        pair = (right, _with_mistake(right, rng))
        for order, verdict in ((pair, "first"), (pair[::-1], "second")):
            question = judge.ask(Comparison(question_of(each), *order), ())
            reply = judge.write(verdict, working_of(right, *order))
            yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]}


def working_of(right: str, first: str, second: str) -> str:
    """What stands at each place in the right answer and in both, up to the first place at which these differ."""
    places = []
    for letters in itertools.zip_longest(right, first, second, fillvalue=END):
        places.append("".join(letters))
        if letters[1] != letters[2]:
            return ",".join(places)
    raise ValueError(f"the answers {first!r} and {second!r} are equal")


def _with_mistake(right: str, rng: random.Random) -> str:
    """An answer with another letter, one too few or one twice, or with two neighbours in each other's place."""
    place = rng.randrange(len(right))
    letter, rest = right[place], right[place + 1 :]
    other = rng.choice([each for each in LETTERS if each != letter])
    swapped = rest[:1] + letter + rest[1:]
    ends = (other + rest, other + rest, rest, letter + letter + rest, swapped)
    wrong = right[:place] + rng.choice(ends)
    return wrong if wrong != right else right[:place] + other + rest


def runs():
    """The start of each seed and the two ways to continue."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    paths = {f"data.sources.{name}.path": f"{{workdir}}/{name}.jsonl" for name in ("problems", "judge")}
    length = {"train.steps": ITERATIONS, "optimizer.learning_rate": 5e-4, "rl.eval_prompts": 0}
    closed_loop = paths | BY_REWARDS | length | {"init_from": f"{{workdir}}/seed{seed}_sft"}
    return {"sft": paths, "without": closed_loop | {"rl.critic.share": 0.0}, "with": closed_loop}


def evaluate(config, workdir):
    """Held-out accuracy of answers, and metrics of verdicts on pairs of the start, of one style, and of its own."""
    from k2jax.rl.evaluation import evaluate_checkpoint
    from k2jax.rl.methods.critic import judge_with_checkpoint

    study = resolve(*held_out_configs())
    held_out, groups = evaluate_checkpoint(study, str(workdir))
    of_prompts = [verified_pairs(group.prompt.task, group.trajectories) for group in groups]
    own = draw_pairs(of_prompts, PAIRS, seed=0, fits=lambda pair: True)
    file = workdir.parent / f"seed{config.train.seed}_pairs.json"
    if workdir.name.endswith("_sft"):
        write_atomic(file, json.dumps([(pair.task.to_json(), pair.better, pair.worse) for pair in own]))
    stored = [(Task.from_json(line), better, worse) for line, better, worse in json.loads(file.read_text())]
    keys = (EpisodeKey("eval", 0, number, 0) for number in range(len(stored)))
    fixed = [VerifiedPair(*pair, key=key, worse_sample=1) for pair, key in zip(stored, keys, strict=True)]
    judged = judge_with_checkpoint(study, str(workdir), [*fixed, *own])
    sets = {"fixed": judged[: len(fixed)], "own": judged[len(fixed) :]}
    record = {f"{name}/{key}": value for name, of in sets.items() for key, value in verdict_metrics(of).items()}
    return record | {key: held_out.record(groups)[f"eval/{key}"] for key in ("greedy", "avg@4")}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Verdicts of every run over seeds, by set of pairs, and the points that they gain over the start's."""
    measured = SeedRecords.of(results, RUNS)
    rows = []
    for name, label in SETS.items():
        for run in RUNS:
            accuracy, *shares = (measured.spread(run, f"{name}/{key}") for key in SHARES)
            rows.append((RUNS[run], label, accuracy, measured.gain(run, f"{name}/accuracy", "sft"), *shares))
    answers = ", ".join(f"{label} {measured.spread(run, 'greedy')}" for run, label in RUNS.items())
    counts = ", ".join(f"{name} {measured.spread('sft', f'{name}/pairs', 0)}" for name in SETS)
    text = (
        f"{markdown_table(HEADER, rows)}\nVerdicts on held-out pairs of a right and a wrong response, greedy, in both "
        f"orders; mean (lowest to highest) over {len(measured.seeds)} seeds; pairs at the start: {counts}. First place "
        "and longer answer: shares of the verdicts that choose one answer, of two lengths for the latter; a judge "
        f"without a bias of place has 0.5. Held-out problems solved greedily: {answers}.\n"
    )
    return Summary(text, _figure(results, measured))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0)
    seed_curves(axes[0, 0], results, "with", "refinement/accuracy", label="right", color=PALETTE[0])
    both = "refinement/both_right"
    seed_curves(axes[0, 0], results, "with", both, label="right in both orders", color=PALETTE[1])
    style_axes(axes[0, 0], title="Sampled verdicts in the closed loop", x="iteration", y="share")
    legend(axes[0, 0])
    for place, (run, label) in enumerate(RUNS.items()):
        for number, name in enumerate(SETS):
            shares = [share for share in measured.values(run, f"{name}/accuracy") if share is not None]
            at = [number + 0.2 * (place - 1)] * len(shares)
            axes[0, 1].plot(at, shares, "o", color=PALETTE[place], label=label if number == 0 else None)
    axes[0, 1].axhline(0.5, color="0.6", linewidth=1)
    axes[0, 1].set_xticks(range(len(SETS)), [label.replace(", ", ",\n") for label in SETS.values()])
    style_axes(axes[0, 1], title="Held-out verdicts that are right, by seed", y="share")
    legend(axes[0, 1])
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
