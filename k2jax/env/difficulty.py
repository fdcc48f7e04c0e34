r"""Keeps the tasks of a dataset that a model neither always solves nor always fails (Kimi K2, section 3.2.1).

Example:
    python -m k2jax.env.difficulty tool_use --options=count=200 --model=runs/sft-nano --workdir=runs/difficulty
    python -m k2jax.env.difficulty runs/tool-use/tasks.jsonl --model=http://localhost:8000 --served_model=k2 \
        --samples=8 --band=0.1,0.9 --workdir=runs/difficulty

Every task is asked --samples times. The workdir gets kept.jsonl with the tasks whose pass rate lies in --band,
asked.jsonl with all of them, pass_rates.json (by which reinforcement learning chooses a class's tasks with
config.rl.tasks.NAME.pass_rates and pass_band), difficulty.md, and every answer. Answers that a machine's failure
prevented count for nothing. A command that was stopped goes on when it is given again, and another --band asks nothing
anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
import json
from pathlib import Path

from absl import flags

from k2jax import cli
from k2jax.agents.task import Task
from k2jax.env.task_lists import listed_tasks
from k2jax.errors import UserError
from k2jax.evaluate.suite import Suite, checked_suite
from k2jax.evaluate.suite_run import JudgedAnswer, read_answers
from k2jax.files.atomic import write_atomic
from k2jax.report.table import markdown_table
from k2jax.trajectory.pass_rates import PassRates, moderate

SUITE = "tasks"
INTERRUPTED = 130
_STEPS = 10


class AskedTasks:
    """Tasks as the one suite of an evaluation, in the place of ``HeldOutSuites``."""

    def __init__(self, tasks: Sequence[Task], suite: Suite):
        self._tasks, self._suite = list(tasks), suite

    def suites(self, changes: Mapping[str, object]) -> dict[str, Suite]:
        """The suite."""
        return {SUITE: self._suite}

    def tasks(self, name: str, suite: Suite) -> list[Task]:
        """Its tasks."""
        return self._tasks


def pass_rates_of(tasks: Iterable[Task], answers: Iterable[JudgedAnswer], correct: float) -> PassRates:
    """The share of right answers to every task that has an answer.

    Args:
        tasks: that were asked.
        answers: to them; those that a machine's failure prevented are left out.
        correct: least reward of a right one.
    """
    right: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        if answer.failure != "machine":
            right[answer.task].append(answer.score >= correct)
    rates: PassRates = {}
    for task in tasks:
        if task.id in right:
            rates.setdefault(task.domain, {})[task.id] = sum(right[task.id]) / len(right[task.id])
    return rates


def difficulty_table(tasks: Sequence[Task], rates: PassRates, kept: Sequence[Task]) -> str:
    """By domain: tasks, mean pass rate, never and always solved, and kept; then how many have which rate."""
    rows, names = [], Counter(task.domain for task in kept)
    for domain, count in sorted(Counter(task.domain for task in tasks).items()):
        own = list(rates.get(domain, {}).values())
        mean = f"{sum(own) / len(own):.3f}" if own else ""
        never, always = sum(rate == 0 for rate in own), sum(rate == 1 for rate in own)
        rows.append((domain, f"{count:,}", mean, f"{never:,}", f"{always:,}", f"{names[domain]:,}"))
    every = [rate for own in rates.values() for rate in own.values()]
    spread = Counter(min(int(rate * _STEPS), _STEPS - 1) for rate in every)
    steps = [(f"{n / _STEPS:.1f} to {(n + 1) / _STEPS:.1f}", f"{spread[n]:,}") for n in range(_STEPS)]
    header = ("domain", "tasks", "pass rate", "never", "always", "kept")
    return f"{markdown_table(header, rows)}\n{markdown_table(('pass rate', 'tasks'), steps)}"


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "Folder of answers and results.", **to)
    flags.DEFINE_string("model", None, "A checkpoint argument, a server's URL without /v1, oracle, or null.", **to)
    flags.DEFINE_list("options", [], "Options of the dataset, each name=value.", **to)
    flags.DEFINE_enum("split", "train", ["train", "test", "all"], "Split of the dataset.", **to)
    flags.DEFINE_integer("count", 0, "The first so many tasks; 0 is all.", **to, lower_bound=0)
    flags.DEFINE_integer("samples", 8, "Answers to each task.", **to, lower_bound=2)
    flags.DEFINE_list("band", ["0.1", "0.9"], "Least and largest pass rate of the tasks that are kept.", **to)
    flags.DEFINE_float("temperature", 1.0, "Of the answers.", **to, lower_bound=0.0)
    flags.DEFINE_integer("max_tokens", 1024, "Most tokens of an answer.", **to, lower_bound=1)
    flags.DEFINE_float("correct", 1.0, "Least reward of a right answer.", **to, lower_bound=0.0, upper_bound=1.0)
    flags.DEFINE_enum("api", "chat", ("chat", "completions", "responses", "messages", "tokens"), "Of a server.", **to)
    flags.DEFINE_string("served_model", "", "The server's name for its model.", **to)
    flags.DEFINE_string("tokenizer", "", "With --api=tokens: a checkpoint or file with the model's vocabulary.", **to)
    flags.DEFINE_integer("slots", 16, "Sequences that an engine runs at a time.", **to, lower_bound=1)
    flags.DEFINE_integer("max_length", 0, "Of an engine's sequences; 0: as answers need.", **to, lower_bound=0)
    flags.DEFINE_integer("at_once", 32, "Answers at a time.", **to, lower_bound=1)
    flags.DEFINE_string("sandbox", "bubblewrap", "Backend of sandboxes.", **to)
    flags.DEFINE_string("images", "", "What tasks may choose their images from: a folder; empty refuses all.", **to)


def main(values: flags.FlagValues, tasks: str) -> int:
    """Runs the command; returns its exit code."""
    cli.require(values, "workdir", "model")
    from k2jax.agents.collect.event_loop import run
    from k2jax.evaluate.evaluation import Evaluation
    from k2jax.evaluate.models import ModelChoice

    low, high = _band(values.band)
    found = listed_tasks(tasks, values.options, values.split, values.count)
    settings = {name: values[name].value for name in ("samples", "temperature", "max_tokens", "correct")}
    of = {} if tasks.endswith(".jsonl") else {"dataset": tasks, "options": tuple(values.options)}
    suite = checked_suite(settings | of)
    named = ("model", "api", "served_model", "tokenizer", "slots", "max_length")
    choice = ModelChoice(**{name: values[name].value for name in named})
    if choice.model == "oracle" and not of:
        raise UserError("the oracle is a dataset's, and tasks of a file may be of several; name a dataset")
    if not (choice.is_server or choice.is_program):
        from k2jax import runtime

        runtime.prepare()
    folder = Path(values.workdir).expanduser()
    evaluation = Evaluation(str(folder), (), choice, changes={}, held_out=AskedTasks(found, suite))
    try:
        run(evaluation.run(values.at_once, sandbox=values.sandbox, images=values.images))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on")
        return INTERRUPTED
    rates = pass_rates_of(found, read_answers(folder / SUITE).values(), suite.correct)
    kept = moderate(found, rates, low, high)
    _write(folder, found, rates, kept)
    print(f"\n{difficulty_table(found, rates, kept)}")
    print(f"{len(kept):,} of {len(found):,} tasks have a pass rate from {low:g} to {high:g}: {folder / 'kept.jsonl'}")
    return 0


def _band(words: Sequence[str]) -> tuple[float, float]:
    try:
        low, high = map(float, words)
    except ValueError:
        low, high = 1.0, 0.0
    if not 0 <= low <= high <= 1:
        raise UserError("--band is a least and a largest pass rate in [0, 1], such as --band=0.1,0.9")
    return low, high


def _write(folder: Path, tasks: Sequence[Task], rates: PassRates, kept: Sequence[Task]) -> None:
    for name, part in (("asked", tasks), ("kept", kept)):
        write_atomic(folder / f"{name}.jsonl", "".join(f"{task.to_json()}\n" for task in part))
    write_atomic(folder / "pass_rates.json", json.dumps(rates, indent=1) + "\n")
    write_atomic(folder / "difficulty.md", difficulty_table(tasks, rates, kept))


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("TASKS",))
