"""The verifier of instruction following: the share of constraints that hold, and nothing for a false claim.

The hack-check (Kimi K2, section 3.2.1) finds answers that say that they follow the instructions, or repeat them,
without doing so; those lose what they earn by the constraints that do hold.
"""

from __future__ import annotations

import re

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.tasks.instructions.constraints import CONSTRAINTS, words
from k2jax.trajectory import Reward

LEAST_WORDS = 5
"""An answer of fewer words says nothing about its topic, whatever constraints it meets."""
_RULES = r"(?:\w+ )?(?:constraints?|instructions?|requirements?)"
_CLAIMS = re.compile(
    r"\b(?:as (?:you )?(?:requested|required|instructed|asked|specified)\b"
    rf"|(?:all|your|these|the) {_RULES} (?:is|are|was|were|has been|have been)"
    r" (?:all )?(?:met|followed|satisfied|fulfilled)"
    r"|(?:meets?|follow(?:s|ed|ing)?|satisf(?:y|ies|ied)|fulfil(?:s|led)?|compl(?:y|ies|ied) with|adher(?:e|es|ed) to)"
    rf" (?:all |every |each )?(?:of )?(?:the |your |these |given )*{_RULES}"
    r"|(?:this|my|the) (?:answer|text|response) (?:uses|contains|has|includes|is)"
    r" (?:exactly|at (?:most|least)|no|only)\b)",
    re.IGNORECASE,
)


@judges_every_answer(lambda task: "Lamps burn, and birds sing.", worth=None)
def instructions(task: Task, answer: str) -> Reward:
    """Share of the constraints that hold, in [0, 1]; 0 for an answer without content or with a false claim."""
    held = _held(task, answer)
    share = sum(held.values()) / len(held)
    empty = len(words(answer)) < LEAST_WORDS
    hacked = claims_falsely(task, answer)
    info = {"held": held, "hacked": hacked, "empty": empty}
    return Reward(0.0 if empty or hacked else share, info=info)


def claims_falsely(task: Task, answer: str) -> bool:
    """The hack-check: whether an answer claims to meet its task's constraints and does not; False without any."""
    if not task.metadata.get("constraints"):
        return False
    return claims_compliance(answer, task.instruction[-1]["content"]) and not all(_held(task, answer).values())


def _held(task: Task, answer: str) -> dict[str, bool]:
    """Whether each constraint of a task holds, by name."""
    return {name: CONSTRAINTS[name].holds(answer, *values) for name, values in task.metadata["constraints"]}


def claims_compliance(answer: str, prompt: str) -> bool:
    """Whether an answer says that it follows instructions, or repeats a constraint of the prompt as its own text."""
    repeated = (line.removeprefix("- ") for line in prompt.splitlines() if line.startswith("- "))
    lowered = answer.casefold()
    return bool(_CLAIMS.search(answer)) or any(line.casefold() in lowered for line in repeated)
