"""Programming tasks of a few characters: an expression of Python, of which only an interpreter tells which is meant.

``half2 5 17 9 30 28=43`` asks for an expression of ``x`` that gives 43 for these numbers: half of the sum of some of
them, with a 2 in it. That leaves three readings, ``x[2:]``, ``x[:2]`` and ``x[::2]``. The interpreter holds the example
as ``x`` and ``y``, so that a solution tests before it answers: ``sum(x[2:])//2==y`` is True or False. The answer is
judged by tests on other numbers. A model of characters can learn it in the compact format of conversations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import random
from typing import Any

from k2jax.agents.environment import Message
from k2jax.agents.scripted import called, play_actions, said
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.toolsets.python import SOURCE
from k2jax.tasks.code.verifier import TEMPLATE
from k2jax.tasks.generated import GeneratedTasks, check_kinds, check_share, demonstrated_call, user

FORMS = {"sum": "sum({})", "half": "sum({})//2", "rest": "sum({})%50", "minus": "-sum({})", "twice": "2*sum({})"}
"""The expression of a part of the numbers, by the word that asks for it."""
READINGS = ("x[{}:]", "x[:{}]", "x[::{}]")
"""What the number behind the word may mean, in alphabetical order."""
_SIZES, _LENGTH, _LARGEST, _TESTS = (1, 2, 3), 5, 40, 3
"""Numbers behind a word, length of ``x``, its largest number, and tests of a task."""


class ExpressionTasks(GeneratedTasks):
    """Distinct tasks; metadata hold the tests, what the interpreter holds, and the readings, the right one first."""

    def __init__(
        self, kinds: tuple[str, ...] = tuple(FORMS), count: int = 10_000, seed: int = 0, split: Split = "train"
    ):
        """A set of tasks.

        Args:
            kinds: of ``FORMS``, each with equal probability.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or ``count`` is not positive.
        """
        check_kinds("expressions", kinds, list(FORMS))
        self._kinds = kinds
        super().__init__("expressions", count, split, stream=f"expressions {seed} {split} {' '.join(kinds)}")

    def draw(self, number: int, rng: random.Random) -> Task:
        """A task of any kind."""
        return _task(rng.choice(self._kinds), rng)


def _task(kind: str, rng: random.Random) -> Task:
    size = rng.choice(_SIZES)
    readings = [FORMS[kind].format(part.format(size)) for part in READINGS]
    rng.shuffle(readings)
    (x, y), *tests = [_example(readings, rng) for _ in range(1 + _TESTS)]
    prompt = f"{kind}{size} {' '.join(map(str, x))}={y}"
    return Task(
        id=prompt,
        domain=kind,
        instruction=(user(prompt),),
        verifier="unit_tests",
        environment="tools",
        tools=("python",),
        metadata={
            "tests": [f"assert f({numbers}) == {value}" for numbers, value in tests],
            TEMPLATE: "def f(x):\n    return {}\n",
            SOURCE: f"x, y = {x}, {y}",
            "readings": readings,
        },
    )


def _example(readings: Sequence[str], rng: random.Random) -> tuple[list[int], int]:
    """Numbers for which all readings differ, and the value of the first."""
    while True:
        x = [rng.randint(1, _LARGEST) for _ in range(_LENGTH)]
        values = [eval(reading, {"x": x}) for reading in readings]
        if len(set(values)) == len(values):
            return x, values[0]


def expression_demonstrations(tasks: Iterable[Task], direct: float = 0.7, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One conversation for every task: ``{"messages": [user, assistant, tool, ..., assistant]}``.

    The teacher tests readings in the order of ``READINGS`` until one is right or one is left, or answers any of them at
    once. The order lets a small model know from its last test which readings are left.

    Args:
        tasks: of the dataset ``expressions``.
        direct: share of answers without a test, of which two in three are wrong.
        seed: of the choice of styles and readings.

    Raises:
        UserError: ``direct`` is no share.
    """
    check_share("direct answers", direct)
    rng = random.Random(seed)
    for task in tasks:
        readings = task.metadata["readings"]
        tests = rng.random() >= direct
        messages = _tested(sorted(readings), readings[0]) if tests else [said(rng.choice(readings))]
        yield {"messages": [*task.instruction, *messages]}


def _tested(readings: Sequence[str], right: str) -> Iterator[Mapping[str, Any]]:
    """Tests of readings in order, and the answer."""
    for reading in readings[:-1]:
        yield from demonstrated_call("python", f"{reading}==y", str(reading == right))
        if reading == right:
            break
    yield said(right)


def oracle(task: Task, messages: Sequence[Message]) -> Message:
    """A test of the right reading, and then the answer."""
    reading = task.metadata["readings"][0]
    return play_actions([called("python", code=f"{reading}==y"), said(reading)], messages)
