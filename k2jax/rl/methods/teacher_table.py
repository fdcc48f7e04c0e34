"""Which teacher judges which class of tasks: the best one of an evaluation table, never a mean of several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
import json
from pathlib import Path

import numpy as np

from k2jax import processes
from k2jax.config.schema import Config
from k2jax.errors import UserError, nearest
from k2jax.files.atomic import write_atomic
from k2jax.rl.evaluation import evaluate_checkpoint
from k2jax.train.run import say

Table = Mapping[str, Mapping[str, float]]
"""Accuracy by class of tasks and, in it, by teacher."""

FILE = "teachers.json"
"""Name of a measured table in the workdir."""


def named_checkpoints(teachers: Sequence[str]) -> dict[str, str]:
    """The checkpoints of ``config.rl.distill.teachers`` by name.

    Raises:
        UserError: an entry is not "NAME=CHECKPOINT", or two have one name.
    """
    named: dict[str, str] = {}
    for entry in teachers:
        name, equals, checkpoint = entry.partition("=")
        if not (name and equals and checkpoint):
            raise UserError(f"config.rl.distill.teachers has {entry!r}; an entry is NAME=CHECKPOINT")
        if name in named:
            raise UserError(f"config.rl.distill.teachers names two teachers {name!r}")
        named[name] = checkpoint
    return named


def chosen_teachers(config: Config, workdir: Path) -> dict[str, str]:
    """The name of the best teacher of every class of tasks.

    The table is ``config.rl.distill.table``, or what the run has measured before its first iteration and keeps in its
    workdir.

    Raises:
        UserError: the table cannot be read, lacks a class or a teacher, or two teachers are equally good.
    """
    teachers, classes = named_checkpoints(config.rl.distill.teachers), sorted(config.rl.tasks)
    file = Path(config.rl.distill.table or workdir / FILE)
    if not config.rl.distill.table and not file.exists():
        table = measured_table(config, teachers)
        write_atomic(file, json.dumps(table, indent=2) + "\n")
    chosen = best_teachers(read_table(file), classes, sorted(teachers), file)
    for name in classes:
        say(f"teacher of {name}: {chosen[name]}, by {file}")
    return chosen


def measured_table(config: Config, teachers: Mapping[str, str]) -> Table:
    """Evaluates every teacher on the held-out tasks of ``config.rl``: the share of right answers that are sampled.

    Args:
        config: its ``rl`` group and ``data.chat_format`` are read.
        teachers: checkpoints by name.

    Raises:
        UserError: there are no held-out tasks, or several processes, whose teachers one process cannot hold.
    """
    if not config.rl.eval_prompts:
        raise UserError("config.rl.eval_prompts is 0, so no teacher can be measured; raise it, or set rl.distill.table")
    if processes.count() > 1:
        raise UserError("teachers are measured by one process; measure them so, and name its file in rl.distill.table")
    table: dict[str, dict[str, float]] = defaultdict(dict)
    for name, checkpoint in sorted(teachers.items()):
        say(f"measuring the teacher {name}")
        held_out, groups = evaluate_checkpoint(config, checkpoint)
        marks = defaultdict(list)
        for group in groups:
            scored = [i for i in range(1, len(group.trajectories)) if group.trajectories[i].reward is not None]
            marks[group.prompt.kind] += [held_out.is_right(group, i) for i in scored]
        for kind, right in sorted(marks.items()):
            table[kind][name] = float(np.mean(right)) if right else float("nan")
    return dict(table)


def read_table(file: Path) -> Table:
    """Reads a table from a JSON file ``{"CLASS": {"TEACHER": accuracy}}``.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    try:
        table = json.loads(file.read_text())
    except OSError as error:
        raise UserError(f"config.rl.distill.table {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    rows = table.values() if isinstance(table, dict) else [None]
    if not all(isinstance(row, dict) and all(type(value) in (int, float) for value in row.values()) for row in rows):
        raise UserError(f'{file} is no evaluation table; it should be {{"CLASS": {{"TEACHER": 0.9}}}}')
    return table


def best_teachers(table: Table, classes: Sequence[str], teachers: Sequence[str], file: Path) -> dict[str, str]:
    """The teacher with the highest accuracy in each class of tasks.

    Args:
        table: may hold other classes and teachers too.
        classes: of the run.
        teachers: names of the run's teachers.
        file: where the table is from, for messages.

    Raises:
        UserError: a class or a teacher has no number, or two teachers have the highest one.
    """
    chosen = {}
    for name in classes:
        if name not in table:
            raise UserError(f"{file} has no class of tasks {name!r}{nearest(name, list(table))}; add it")
        accuracies = table[name]
        if missing := [teacher for teacher in teachers if not np.isfinite(accuracies.get(teacher, np.nan))]:
            raise UserError(f"{file} has no accuracy of the teacher {missing[0]!r} in the class {name!r}; add it")
        highest = max(accuracies[teacher] for teacher in teachers)
        best = [teacher for teacher in teachers if accuracies[teacher] == highest]
        if len(best) > 1:
            raise UserError(
                f"the teachers {' and '.join(best)} are equally good in the class {name!r} ({highest}); raise one's "
                f"number in {file}"
            )
        chosen[name] = best[0]
    return chosen
