"""The verifier of mathematics: math-verify compares the boxed answer with the right one.

It runs in a process that is killed at the time limit, so math-verify's own limits, which count as a wrong answer, are
off.
"""

from __future__ import annotations

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.agents.verifier_pool.needed_packages import NeededPackages, needs
from k2jax.tasks.mathematics.dataset import last_boxed
from k2jax.trajectory import Reward

PACKAGE = NeededPackages("math", ("math_verify",), "pip install 'k2jax[env]'")
LONGEST = 300
"""Characters of a final answer; a longer one is none."""


def _boxed_right(task: Task) -> str:
    return f"\\boxed{{{task.metadata['answer']}}}"


@needs(PACKAGE.load)
@judges_every_answer(_boxed_right)
def math(task: Task, answer: str) -> Reward:
    r"""1 if the last ``\boxed{}`` is equal to the right answer as an expression, else 0."""
    boxed = last_boxed(answer)
    if not boxed or len(boxed) > LONGEST:
        return Reward(0.0, info={"boxed": False})
    right = _parsed(task.metadata["answer"])
    if not right:
        raise ValueError(f"the answer {task.metadata['answer']!r} of the task {task.id!r} is no expression")
    equal = PACKAGE.load().verify(right, _parsed(boxed), timeout_seconds=None)
    return Reward(float(equal), info={"boxed": True})


def _parsed(expression: str) -> list:
    return PACKAGE.load().parse(f"\\boxed{{{expression}}}", parsing_timeout=None)
