"""Problems that take tools: sums with a calculator of one operation, and values in a key-value store.

A kind is a maker and a size. ``calc2`` is a sum of two operations on numbers of three digits; ``kv2`` adds two stored
numbers, whose keys are letters; ``hop2`` follows a key to a key to a number. The instruction is a few characters, so
that a model of characters can learn to call the tools in the compact format of conversations.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import random
from typing import NamedTuple

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.toolsets.store import STORE
from k2jax.errors import UserError
from k2jax.tasks.drawing import SizedMaker, distinct, draw_kind, sized_makers

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


class ToolUseTasks:
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
        if count < 1:
            raise UserError(f"tool_use: count is {count}; it must be positive")
        self._makers = sized_makers("tool_use", kinds, _MAKERS)
        self._count, self._seed, self._split = count, seed, split

    def load(self) -> Iterator[Task]:
        """The tasks in a random order that depends on the options alone.

        Raises:
            UserError: there are not as many distinct problems of these kinds.
        """
        kinds = list(self._makers)
        rng = random.Random(f"tool_use {self._seed} {self._split} {' '.join(kinds)}")

        def draw() -> tuple[str, tuple[str, ToolProblem]]:
            kind, problem = draw_kind(self._makers, rng)
            stored = json.dumps(problem.store, separators=(",", ":")) if problem.store else ""
            return f"{kind}/{problem.prompt}{stored}", (kind, problem)

        words = {"dataset": "tool_use", "things": f"problems of {'+'.join(kinds)}", "remedy": "the sizes"}
        for name, (kind, problem) in distinct(draw, self._count, self._split, **words):
            metadata = {"answer": problem.answer, "kind": kind, "calls": [list(call) for call in problem.calls]}
            yield Task(
                id=name,
                domain=kind,
                instruction=({"role": "user", "content": problem.prompt},),
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
