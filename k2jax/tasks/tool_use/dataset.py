"""Problems that take tools: sums with a calculator of one operation, and values in a key-value store.

A kind is a maker and a size. ``calc2`` is a sum of two operations on numbers of three digits; ``kv2`` adds two stored
numbers, whose keys are letters; ``hop2`` follows a key to a key to a number. The instruction is a few characters, so
that a model of characters can learn to call the tools in the compact format of conversations.
"""

from __future__ import annotations

import json
import random
from typing import NamedTuple

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.toolsets.store import STORE
from k2jax.tasks.generated import GeneratedTasks, SizedMaker, sized_makers, user

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STORED = 6
"""Keys in a store."""


class ToolProblem(NamedTuple):
    """One problem.

    Attributes:
        prompt: the instruction.
        store: first contents of the key-value store; empty where there is none.
        calls: those of a solution, in order: name and arguments of each.
        answer: the only right one.
    """

    prompt: str
    store: dict[str, str]
    calls: list[tuple[str, str]]
    answer: str


class ToolUseTasks(GeneratedTasks):
    """Distinct problems; metadata hold the answer, the kind, the store and the calls of a solution."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("calc2", "kv2", "hop2"),
        count: int = 10_000,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of problems.

        Args:
            kinds: each with equal probability.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or ``count`` is not positive.
        """
        self._makers = sized_makers("tool_use", kinds, _MAKERS)
        super().__init__("tool_use", count, split, stream=f"tool_use {seed} {split} {' '.join(self._makers)}")

    def identity(self, task: Task) -> str:
        """The kind, the prompt and the store."""
        return task.id

    def draw(self, number: int, rng: random.Random) -> Task:
        """A problem of any kind."""
        kind = rng.choice(list(self._makers))
        problem = self._makers[kind](rng)
        stored = json.dumps(problem.store, separators=(",", ":")) if problem.store else ""
        metadata = {"answer": problem.answer, "kind": kind, "calls": [list(call) for call in problem.calls]}
        return Task(
            id=f"{kind}/{problem.prompt}{stored}",
            domain=kind,
            instruction=(user(problem.prompt),),
            verifier="final_answer",
            environment="tools",
            tools=("calculator", "store") if problem.store else ("calculator",),
            metadata=metadata | ({STORE: problem.store} if problem.store else {}),
        )


def _calculate(rng: random.Random, operations: int) -> ToolProblem:
    """A chain of sums and differences from left to right."""
    total = rng.randint(100, 999)
    prompt, calls = str(total), []
    for _ in range(operations):
        sign, number = rng.choice("+-"), rng.randint(100, 999)
        prompt += f"{sign}{number}"
        calls.append(("calc", f"{total}{sign}{number}"))
        total = total + number if sign == "+" else total - number
    return ToolProblem(f"{prompt}=", {}, calls, str(total))


def _add_stored(rng: random.Random, count: int) -> ToolProblem:
    keys = rng.sample(_LETTERS, max(_STORED, count))
    numbers = {key: rng.randint(10, 99) for key in keys}
    chosen = rng.sample(keys, count)
    calls, total = [("get", key) for key in chosen], numbers[chosen[0]]
    for key in chosen[1:]:
        calls.append(("calc", f"{total}+{numbers[key]}"))
        total += numbers[key]
    store = {key: str(number) for key, number in sorted(numbers.items())}
    return ToolProblem("+".join(chosen) + "=", store, calls, str(total))


def _follow(rng: random.Random, hops: int) -> ToolProblem:
    """A chain of keys, each the value of the one before, to a number; the other keys lead elsewhere."""
    keys = rng.sample(_LETTERS, max(_STORED, hops + 1))
    store = {key: rng.choice([other for other in keys if other != key]) for key in keys}
    chain, number = keys[:hops], str(rng.randint(10, 99))
    store |= dict(zip(chain, [*chain[1:], number], strict=True))
    return ToolProblem(f"{chain[0]}{'>' * hops}", dict(sorted(store.items())), [("get", key) for key in chain], number)


_MAKERS = {
    "calc": SizedMaker(_calculate, 1, 9),
    "kv": SizedMaker(_add_stored, 2, 9),
    "hop": SizedMaker(_follow, 1, 9),
}
