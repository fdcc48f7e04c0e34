"""An imperfect teacher of tool use: it often answers at once, which a small model learns badly, or it calls tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import random
from typing import Any

from k2jax.agents.scripted import said
from k2jax.agents.task import Task
from k2jax.agents.toolsets.calculator import calc
from k2jax.agents.toolsets.store import STORE
from k2jax.tasks.generated import check_share, demonstrated_call


def tool_demonstrations(tasks: Iterable[Task], direct: float = 0.6, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One conversation for every task: ``{"messages": [user, assistant, tool, ..., assistant]}``.

    Args:
        tasks: of the dataset ``tool_use``.
        direct: share of answers without a call; 0 is a clean teacher, who calls tools for all of them.
        seed: of the choice of styles.

    Raises:
        UserError: ``direct`` is no share.
    """
    check_share("direct answers", direct)
    rng = random.Random(seed)
    for task in tasks:
        yield {"messages": [*task.instruction, *solved(task, with_tools=rng.random() >= direct)]}


def solved(task: Task, with_tools: bool = True) -> list[Mapping[str, Any]]:
    """The messages after the instruction of a right solution: a call in each, its result, and the answer."""
    messages: list[Mapping[str, Any]] = []
    for name, arguments in task.metadata["calls"] if with_tools else ():
        result = str(calc(arguments)) if name == "calc" else task.metadata[STORE][arguments]
        messages += demonstrated_call(name, arguments, result)
    return [*messages, said(task.metadata["answer"])]
