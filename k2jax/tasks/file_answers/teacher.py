"""An imperfect teacher of work in a folder: its commands are often careless, each kind of task in its own way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import random
from typing import Any, NamedTuple

from k2jax.agents.environments.files import FILES
from k2jax.agents.scripted import said
from k2jax.agents.task import Task
from k2jax.tasks.file_answers.dataset import EXPECTED, word
from k2jax.tasks.generated import check_share, user

FINISH = "echo $done"
"""Command that ends an episode: the agent's environment says in ``done`` what it is to print."""


class ShellStep(NamedTuple):
    """A command, and what it prints."""

    command: str
    output: str = ""


def file_demonstrations(
    tasks: Iterable[Task], careless: float = 0.7, seed: int = 0, system: str = "bash"
) -> Iterator[dict[str, Any]]:
    """One conversation for every task, as ``experiments/rl/agents/mini_compact.json`` has it.

    The agent's system message and the instruction come first. Every answer is a command, and every observation its exit
    code and what it printed.

    Args:
        tasks: of the dataset ``file_answers``.
        careless: share of solutions that are careless, except of ``write``; 0 is a clean teacher.
        seed: of the choice.
        system: the system message.

    Raises:
        UserError: ``careless`` is no share.
    """
    check_share("careless solutions", careless)
    numbers = random.Random(seed)
    for task in tasks:
        steps = careless_steps(task, numbers) if numbers.random() < careless else careful_steps(task)
        messages = [{"role": "system", "content": system}, *task.instruction]
        for step in steps:
            messages += [said(step.command), user(f"0 {step.output}")]
        yield {"messages": messages[:-1]}  # what the last command prints is shown to nobody


def careful_steps(task: Task) -> list[ShellStep]:
    """The commands of a right solution."""
    kind, names, target, text = _parts(task)
    if kind == "write":
        return [ShellStep(f"echo {text}>{target};{FINISH}")]
    if kind == "follow":
        return [ShellStep(f"cat {names[0]}", names[1]), ShellStep(f"cp {names[1]} {target};{FINISH}")]
    command = f"cat {' '.join(names)}>{target}" if kind == "join" else f"cp {names[0]} {target}"
    return [ShellStep(f"{command};{FINISH}")]


def careless_steps(task: Task, numbers: random.Random) -> list[ShellStep]:
    """The commands of a wrong solution; a right one of ``write``.

    A copy gets a name of the teacher's own, the second file is not joined, and what should be followed is copied.
    """
    kind, names, target, _ = _parts(task)
    if kind == "write":
        return careful_steps(task)
    wrong = word(numbers, len(target) // 2) if kind == "copy" else target
    return [ShellStep(f"cp {names[0]} {wrong};{FINISH}")]


def _parts(task: Task) -> tuple[str, list[str], str, str]:
    """Kind, names of the files that are there, name of the file that is asked for, and its text."""
    [(target, text)] = task.metadata[EXPECTED].items()
    return task.domain.rpartition("/")[2], list(task.metadata[FILES]), target, text
