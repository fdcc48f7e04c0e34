"""Two specialists become one model: on-policy distillation, weight averaging, and SFT on what specialists answer.

Reproduces: specialize, then unify (KAT-Coder-V2, sections 3.1 and 3.4), at the scale of a laptop. The classes of tasks
are running sums of five digits and sorting of six letters. A start is fine-tuned on a teacher who gives every other
answer of both classes without working; each specialist continues from it with worked answers of its own class alone.
The student continues from the same start with its own answers to both classes, of which the specialist of the class
judges every token; once without and once with the rewards of the verifier. Beside it stand the mean of the specialists'
weights, and SFT of the start on the right answers that the specialists sample in their classes. The evaluation table is
written down before the first run, and the summary says whether what was measured agrees with it.
Expected: on each of three seeds the student keeps at least 95 % of each specialist's accuracy, and the mean of the
weights does not (docs/reproductions.md).

    python -m k2jax.reproduce distillation --workdir=runs/distillation
"""

import json
from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.files.atomic import write_atomic
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, spread
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds, seeds_of
from k2jax.reproduce.study_file import load_study_file
from k2jax.tasks.characters.teacher import demonstrations, pretraining_texts

base = load_study_file("nano_post_training")
KINDS = {"letters": "sort6", "numbers": "sum5"}  # of the tasks, by class
EASIER = {"letters": "sort4+rev4", "numbers": "add2+sub2+sum3"}  # of pretraining
PROMPTS = 12_000  # of each class, of teachers and students
PROBLEMS = 2000  # held out, of both classes
TARGET = 0.95  # share of a specialist's accuracy
LABELS = {
    "start": "the start",
    "numbers": "specialist, numbers",
    "letters": "specialist, letters",
    "averaged": "mean of their weights",
    "sft_of_outputs": "SFT on their answers",
    "distilled": "distilled",
    "distilled_rewarded": "distilled, with rewards",
}
SFT = {"stage": "sft", "data.sources.numbers.kind": "chat", "data.sources.letters.kind": "chat"}
# The gap of one sampled token is a noisy estimate of the divergence, and Muon's steps are as large for noise as for a
# signal: few samples of many prompts, since sharp answers to one prompt are alike, and steps that become very small.
RL = base.RL | {"train.steps": 130, "optimizer.learning_rate": 1e-3, "rl.updates": 2}
DISTILL = {"rl.distill.weight": 1.0, "rl.distill.table": "{workdir}/table.json", "rl.loss.per_domain": True}
DISTILL |= {"rl.rollout.prompts": 128, "rl.rollout.samples": 2}
DISTILL |= {"optimizer.schedule.decay_steps": 160, "optimizer.schedule.floor": 0.02}  # of 260 updates


def get_config():
    """The model of ``nano_post_training`` with two sources of text and two classes of tasks, which all runs share."""
    config = base.get_config()
    config.data.sources = {name: source(kind="jsonl") for name in KINDS}
    config.eval.every = 80
    config.rl.tasks = {name: task(dataset="characters", options=_options(name), max_tokens=64) for name in KINDS}
    config.rl.rollout.samples = 4
    config.rl.update({"skip_flat_groups": False, "eval_prompts": 0, "keep_trajectories": 100})
    return config


def _options(name: str, count: int = 3000) -> tuple[str, ...]:
    return (f"kinds={KINDS[name]}", f"count={count}")


def held_out_configs():
    """The configuration of the evaluation, whose tasks are loaded before the first run."""
    config = get_config()
    config.rl.eval_prompts, config.rl.eval_samples = PROBLEMS, 1
    return [config]


def prepare(workdir: Path):
    """Writes for each class the text of pretraining and both teachers' demonstrations, and the evaluation table."""
    for name in KINDS:
        problems = load_tasks("characters", _options(name, PROMPTS))
        texts = pretraining_texts(load_tasks("characters", (f"kinds={EASIER[name]}", "count=10000")))
        records = {"text": ({"text": text} for text in texts), "clean": demonstrations(problems, direct=0.0)}
        for kind, lines in (records | {"imperfect": demonstrations(problems, direct=0.5)}).items():
            write_data(workdir, {f"{name}_{kind}.jsonl": lines})
    table = {name: {teacher: float(teacher == name) for teacher in KINDS} for name in KINDS}
    write_atomic(workdir / "table.json", json.dumps(table, indent=2) + "\n")


def runs():
    """The start and the specialists of each seed, then the ways to unify them."""
    return for_seeds(base.SEEDS, _chain)


def _chain(seed: int) -> dict[str, dict]:
    folder = f"{{workdir}}/seed{seed}"
    from_start = {"init_from": f"{folder}_start", "optimizer.learning_rate": 3e-3}
    teachers = {"rl.distill.teachers": tuple(f"{name}={folder}_{name}" for name in KINDS)}
    prompts = {f"rl.tasks.{name}.options": _options(name, PROMPTS) for name in KINDS}
    distilled = RL | DISTILL | teachers | prompts | {"init_from": f"{folder}_start"}
    answers = {f"data.sources.{name}.kind": "trajectories" for name in KINDS}
    answers |= {f"data.sources.{name}.filters": ("correct_answer",) for name in KINDS}
    return {
        "pretrained": _paths("{workdir}/{name}_text.jsonl"),
        "start": SFT | _paths("{workdir}/{name}_imperfect.jsonl") | {"init_from": f"{folder}_pretrained"},
        "numbers": SFT | from_start | _paths("{workdir}/numbers_clean.jsonl"),
        "letters": SFT | from_start | _paths("{workdir}/letters_clean.jsonl"),
        "distilled": distilled | {"rl.distill.rewards": False},
        "distilled_rewarded": distilled,
        "outputs_of_numbers": _outputs(folder, "numbers"),
        "outputs_of_letters": _outputs(folder, "letters"),
        "sft_of_outputs": SFT | from_start | _paths(f"{folder}_outputs_of_{{name}}/trajectories") | answers,
    }


def _paths(pattern: str) -> dict[str, str]:
    """The paths of both sources, whose name takes the place of ``{name}``."""
    return {f"data.sources.{name}.path": pattern.replace("{name}", name) for name in KINDS}


def _outputs(folder: str, name: str) -> dict:
    """A specialist samples answers in its own class and learns nothing."""
    own = {f"rl.tasks.{other}.options": _options(name) for other in KINDS}
    return RL | own | {"init_from": f"{folder}_{name}", "optimizer.learning_rate": 0.0, "train.steps": 10}


def evaluate(config, workdir):
    """Greedy accuracy in both classes on held-out problems; after the second specialist also of their mean."""
    from k2jax.convert.loading import from_pretrained, tokenizer_of

    name = workdir.name.partition("_")[2]
    if name not in LABELS:
        return {}
    model, params = from_pretrained(workdir)
    tokenizer = tokenizer_of(workdir)
    record = {name: _accuracies(model, params, tokenizer)}
    if name == "letters":
        import jax

        _, other = from_pretrained(workdir.parent / workdir.name.replace("letters", "numbers"))
        mean = jax.tree.map(lambda a, b: (a + b) / 2, params, other)
        record["averaged"] = _accuracies(model, mean, tokenizer)
    return record


def _accuracies(model, params, tokenizer) -> dict[str, float]:
    from k2jax.rl.evaluation import evaluate_params

    held_out, groups = evaluate_params(resolve(*held_out_configs()), model.config, params, tokenizer)
    right = {name: [] for name in KINDS}
    for group in groups:
        if group.trajectories[0].reward is not None:
            right[group.prompt.kind].append(held_out.is_right(group, 0))
    return {name: float(np.mean(marks)) for name, marks in right.items()}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Accuracies over seeds, and which share of each specialist's accuracy a model keeps in its class."""
    seeds = seeds_of(results)
    evaluations = lambda seed: [each.evaluation for run, each in results.items() if run.startswith(f"seed{seed}_")]  # noqa: E731
    models = [{label: one for each in evaluations(seed) for label, one in each.items()} for seed in seeds]
    accuracies = {label: [model[label] for model in models] for label in LABELS}
    share = lambda one, best, name: one[name] / max(best[name], 1e-9)  # noqa: E731
    kept = {
        label: {name: [share(*pair, name) for pair in zip(of, accuracies[name], strict=True)] for name in KINDS}
        for label, of in accuracies.items()
    }
    cell = lambda label, name: (spread([one[name] for one in accuracies[label]]), spread(kept[label][name]))  # noqa: E731
    rows = [(LABELS[label], *cell(label, "letters"), *cell(label, "numbers")) for label in LABELS]
    header = ("model", "letters", "share of the letters specialist", "numbers", "share of the numbers specialist")
    least = {label: min(min(shares) for shares in kept[label].values()) for label in LABELS}
    pairs = [(name, pair) for name in KINDS for pair in zip(accuracies["letters"], accuracies["numbers"], strict=True)]
    ahead = all(one[name] != two[name] and (one[name] > two[name]) == (name == "letters") for name, (one, two) in pairs)
    agrees, verdict = ("is" if ahead else "is not"), ("keeps" if least["distilled"] >= TARGET else "does not keep")
    text = (
        f"The distilled student {verdict} {100 * TARGET:.0f} % of each specialist's accuracy in its class on every "
        f"seed. The least share is {least['distilled']:.3f}, with rewards beside {least['distilled_rewarded']:.3f}, of "
        f"the mean of the weights {least['averaged']:.3f}, of SFT on the specialists' answers "
        f"{least['sft_of_outputs']:.3f}. Each specialist {agrees} the better one in its class on every seed, as the "
        f"evaluation table has it.\n\n{markdown_table(header, rows)}\nGreedy accuracy on {PROBLEMS} held-out problems; "
        f"mean (lowest to highest) over {len(seeds)} seeds.\n"
    )
    return Summary(text, _figure(results, SeedRecords(seeds, accuracies)))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0)
    for name, color in zip(KINDS, PALETTE, strict=False):
        seed_curves(axes[0, 0], results, "distilled", f"distill/reverse_kl/{name}", label=name, color=color)
    seed_bars(axes[0, 1], measured, LABELS, {name: name for name in KINDS})
    style_axes(axes[0, 0], title="Reverse KL of student and teacher", x="iteration", y="nats per token")
    style_axes(axes[0, 1], title="Held-out accuracy, mean and range", x="share of problems")
    axes[0, 0].set_yscale("log")
    legend(axes[0, 0])  # the bars have the same colours
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
