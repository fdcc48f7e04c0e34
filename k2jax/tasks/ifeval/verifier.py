"""The verifier of IFEval: the four accuracies of the paper, of which one is the reward."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.agents.verifier_pool.needed_packages import needs
from k2jax.tasks.ifbench.verifier import loose_variants
from k2jax.tasks.ifeval.checks import CHECKS, LANGUAGES
from k2jax.trajectory import Reward
from k2jax.trajectory.types import ITEMS


@needs(LANGUAGES.load)
@judges_every_answer(lambda task: "Lamps burn, and birds sing.", worth=None)
def ifeval(task: Task, answer: str) -> Reward:
    """1 if all instructions are followed, else 0, by the task's mode; the parts are both modes, per prompt.

    ``info`` has the verdict of each instruction under ``ITEMS``, which a suite pools over prompts.
    """
    instructions = task.metadata["instructions"]
    held = {
        "strict": [_holds(name, given, [answer]) for name, given in instructions],
        "loose": [_holds(name, given, list(loose_variants(answer))) for name, given in instructions],
    }
    prompts = {mode: float(all(marks)) for mode, marks in held.items()}
    return Reward(prompts[task.metadata["mode"]], prompts, {ITEMS: held, "names": [name for name, _ in instructions]})


def _holds(name: str, given: dict, texts: Sequence[str]) -> bool:
    """Whether one of the texts follows an instruction; an empty one follows none."""
    return any(bool(text.strip()) and CHECKS[name](text, given) for text in texts)
