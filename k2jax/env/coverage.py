r"""Says what a set of tasks covers: how many there are of each domain, or of each value of a tag, and what is scarce.

Example:
    python -m k2jax.env.coverage tool_use --options=count=500
    python -m k2jax.env.coverage runs/difficulty/kept.jsonl --by=verifier --of=runs/difficulty/asked.jsonl
    python -m k2jax.env.coverage multiple_choice --options=path=mmlu.jsonl --split=all --by=category --to=coverage.md

--by is domain (the default), category (the domain's last part), environment, verifier, tools, or a key of the tasks'
metadata. --of names the tasks that these were chosen from: the table then says which share of each value was kept, and
the exit code is 1 where a value has lost all of its tasks. Evenness is the entropy of the shares over its largest
value: 1 where all values have equally many tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
import json
import math
from typing import NamedTuple

from absl import flags

from k2jax import cli
from k2jax.agents.task import Task
from k2jax.env.task_lists import listed_tasks
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.report.table import markdown_table

SCARCE = 0.5
"""Of the tasks that a value would have if all had equally many, below which it is called scarce."""
_LONGEST = 60


class CoverageReport(NamedTuple):
    """What tasks cover.

    Attributes:
        counts: tasks by value, in the order of values; a task with several tools counts for each.
        chosen_from: the same of the tasks that they were chosen from; empty where they are not known.
    """

    counts: dict[str, int]
    chosen_from: dict[str, int]

    @property
    def evenness(self) -> float:
        """Entropy of the shares over its largest value; 1 of a single value."""
        total = sum(self.counts.values())
        shares = [count / total for count in self.counts.values() if count]
        values = max(len(self.counts), len(self.chosen_from))
        return -sum(share * math.log(share) for share in shares) / math.log(values) if values > 1 else 1.0

    @property
    def scarce(self) -> list[str]:
        """Values with less than half of an equal share."""
        values = self.counts | dict.fromkeys(self.lost, 0)
        return [value for value, count in values.items() if count < SCARCE * sum(values.values()) / len(values)]

    @property
    def lost(self) -> list[str]:
        """Values of which no task was kept."""
        return [value for value in self.chosen_from if value not in self.counts]

    def markdown(self, by: str) -> str:
        """The table, and what is scarce."""
        total, rows = sum(self.counts.values()), []
        for value in sorted(self.counts | self.chosen_from):
            count = self.counts.get(value, 0)
            row = (_cell(value), f"{count:,}", f"{count / total:.3f}")
            before = self.chosen_from.get(value, 0)
            rows.append((*row, f"{count / before:.2f}" if before else "") if self.chosen_from else row)
        header = (by, "tasks", "share", "kept") if self.chosen_from else (by, "tasks", "share")
        lines = [markdown_table(header, rows), f"{total:,} tasks, evenness {self.evenness:.2f}"]
        lines += [f"scarce: {', '.join(map(_cell, self.scarce))}"] if self.scarce else []
        lines += [f"lost: {', '.join(map(_cell, self.lost))}"] if self.lost else []
        return "\n".join(lines) + "\n"


def coverage_of(tasks: Iterable[Task], by: str, chosen_from: Iterable[Task] = ()) -> CoverageReport:
    """Counts the tasks of each value.

    Args:
        tasks: to count.
        by: see the command.
        chosen_from: tasks that these were chosen from.

    Raises:
        UserError: no task has the key.
    """
    counts, before = (Counter(value for task in part for value in _values(task, by)) for part in (tasks, chosen_from))
    if set(counts) <= {""}:
        raise UserError(f"no task has {by!r} in its metadata; --by is domain, category, environment, verifier, tools")
    return CoverageReport(
        *(dict(sorted((value or "none", n) for value, n in part.items())) for part in (counts, before))
    )


def _values(task: Task, by: str) -> list[str]:
    if by == "category":
        return [task.domain.rpartition("/")[2]]
    if by == "tools":
        return [tool.split()[0] for tool in task.tools] or [""]
    if by in ("domain", "environment", "verifier"):
        return [getattr(task, by)]
    value = task.metadata.get(by, "")
    return [value if isinstance(value, str) else json.dumps(value, sort_keys=True)]


def _cell(text: str) -> str:
    """Text that cannot end its cell."""
    flat = " ".join(text.replace("|", "\\|").split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 3]}..."


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_list("options", [], "Options of the dataset, each name=value.", **to)
    flags.DEFINE_enum("split", "train", ["train", "test", "all"], "Split of the dataset.", **to)
    flags.DEFINE_integer("count", 0, "The first so many tasks; 0 is all.", **to, lower_bound=0)
    flags.DEFINE_string("by", "domain", "domain, category, environment, verifier, tools, or a key of metadata.", **to)
    flags.DEFINE_string("of", "", "File of the tasks that these were chosen from.", **to)
    flags.DEFINE_string("to", "", "File to write the table into, too.", **to)


def main(values: flags.FlagValues, tasks: str) -> int:
    """Runs the command; the exit code is 1 where a value has lost all of its tasks."""
    chosen_from = listed_tasks(values.of, (), "all", 0) if values.of else ()
    found = listed_tasks(tasks, values.options, values.split, values.count)
    report = coverage_of(found, values.by, chosen_from)
    text = report.markdown(values.by)
    if values.to:
        write_atomic(values.to, text)
    print(text, end="")
    return int(bool(report.lost))


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("TASKS",))
