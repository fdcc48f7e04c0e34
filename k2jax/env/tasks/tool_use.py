"""Problems that take tools: sums with a calculator of one operation, and values in a key-value store.

A kind is a maker and a size. ``calc2`` is a sum of two operations on numbers of three digits; ``kv2`` adds two stored
numbers, whose keys are letters; ``hop2`` follows a key to a key to a number. The instruction is a few characters, so
that a model of characters can learn to call the tools in the compact format of conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import json
import random
import re
from typing import NamedTuple

from k2jax.env.split import Split, split_of
from k2jax.env.task import Task
from k2jax.env.toolsets.store import STORE
from k2jax.errors import UserError, abbreviate, nearest

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STORED = 6
"""Keys in a store."""
_TRIES = 200  # for one more distinct problem of the split


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
        if count < 1 or not kinds:
            raise UserError(f"tool_use: count is {count} and kinds are {len(kinds)}; both must be positive")
        self._makers = {kind: _maker(kind) for kind in kinds}
        self._count, self._seed, self._split = count, seed, split

    def load(self) -> Iterator[Task]:
        """The tasks in a random order that depends on the options alone.

        Raises:
            UserError: there are not as many distinct problems of these kinds.
        """
        rng = random.Random(f"tool_use {self._seed} {self._split} {' '.join(self._makers)}")
        seen: set[str] = set()
        while len(seen) < self._count:
            kind, problem, name = self._draw(rng, seen)
            seen.add(name)
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

    def _draw(self, rng: random.Random, seen: set[str]) -> tuple[str, ToolProblem, str]:
        """A problem of the split that was not drawn before, and its name."""
        for _ in range(_TRIES):
            kind = rng.choice(list(self._makers))
            maker, size = self._makers[kind]
            problem = maker(rng, size)
            stored = json.dumps(problem.store, separators=(",", ":")) if problem.store else ""
            name = f"{kind}/{problem.prompt}{stored}"
            if name not in seen and split_of(name) == self._split:
                return kind, problem, name
        raise UserError(
            f"tool_use: hardly more than {len(seen)} distinct problems of {'+'.join(self._makers)} are in the split "
            f"{self._split!r}; lower count or raise the sizes"
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


_ToolMaker = Callable[[random.Random, int], ToolProblem]
_MAKERS: dict[str, tuple[_ToolMaker, int]] = {"calc": (_calculate, 1), "kv": (_add_stored, 2), "hop": (_follow, 1)}
_LARGEST = 9


def _maker(kind: str) -> tuple[_ToolMaker, int]:
    """The maker and size of a kind such as ``calc2``."""
    match = re.fullmatch(r"([a-z]+)([0-9]+)", kind)
    if match is None or match[1] not in _MAKERS:
        name = match[1] if match else kind
        raise UserError(f"tool_use: {abbreviate(kind)} is no kind followed by a size{nearest(name, list(_MAKERS))}")
    maker, smallest = _MAKERS[match[1]]
    if not smallest <= int(match[2]) <= _LARGEST:
        raise UserError(f"tool_use: the size of {match[1]} is {match[2]}; it must be {smallest} to {_LARGEST}")
    return maker, int(match[2])
