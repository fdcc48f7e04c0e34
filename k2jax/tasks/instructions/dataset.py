"""Instruction following: a request with constraints on the form of its answer that a program can check.

The constraints are of the kind of IFEval's. Of each group (length, case, ...) a task has at most one, so that all of a
task's constraints can hold together.
"""

from __future__ import annotations

import random

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.generated import GeneratedTasks, user
from k2jax.tasks.instructions.constraints import CONSTRAINTS, GROUPS

_REQUESTS = ("Describe {}.", "Explain {} to a child.", "Write a short text about {}.", "Say what matters about {}.")
_TOPICS = (
    "a lighthouse",
    "a market in the morning",
    "how bread is baked",
    "the first snow",
    "a long train journey",
    "how bees live",
    "a violin",
    "the work of a doctor",
    "an old library",
    "how rivers form",
    "a city at night",
    "a garden in spring",
    "the moon",
    "how glass is made",
    "a bridge",
    "the life of a salmon",
    "a storm at sea",
    "how to learn a language",
    "a chess game",
    "a desert",
)


class InstructionTasks(GeneratedTasks):
    """Requests with one or more constraints; the domain is ``instructions``."""

    def __init__(
        self,
        constraints: int = 2,
        count: int = 1000,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of requests.

        Args:
            constraints: on every answer.
            count: number of tasks.
            seed: of topics and constraints.
            split: ``train`` or ``test``.

        Raises:
            UserError: a number is out of range.
        """
        if not 1 <= constraints <= len(GROUPS):
            raise UserError(f"instructions: constraints is {constraints}; it must be from 1 to {len(GROUPS)}")
        self._constraints, self._name = constraints, f"{split}/seed{seed}"
        super().__init__("instructions", count, split, stream=f"{seed} {split}")

    def draw(self, number: int, rng: random.Random) -> Task:
        """A request with constraints of different groups."""
        chosen = []
        for group in rng.sample(sorted(GROUPS), self._constraints):
            name = rng.choice(GROUPS[group])
            chosen.append([name, CONSTRAINTS[name].draw(rng)])
        request = rng.choice(_REQUESTS).format(rng.choice(_TOPICS))
        lines = [f"- {CONSTRAINTS[name].text.format(*values)}" for name, values in chosen]
        return Task(
            id=f"{self._name}/{number}",
            domain="instructions",
            instruction=(user("\n".join([request, "Your answer must meet these constraints:", *lines])),),
            verifier="instructions",
            metadata={"constraints": chosen},
        )
