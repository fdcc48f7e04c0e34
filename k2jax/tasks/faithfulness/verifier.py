"""The reward of an answer that must say what its source supports, and nothing else."""

from __future__ import annotations

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.tasks.faithfulness.sentence_judge import load_judge
from k2jax.trajectory import Reward

CONTEXT, JUDGE, EXPECTED = "context", "judge", "expected"
"""Keys of a task's metadata: the source, the folder of the judge, and texts that a complete answer has."""
LONGEST = 20_000
"""Characters of an answer; a longer one earns nothing, and is not read."""
SUPPORTED = 0.5
"""Probability from which on a sentence counts as supported."""
_SHOWN = 5


@judges_every_answer(lambda task: task.metadata[CONTEXT][: LONGEST // 2], worth=None)
def faithfulness(task: Task, answer: str) -> Reward:
    """The share of an answer's sentences that its source supports, times the share of what it should say.

    A sentence that is repeated counts once, and one that claims nothing does not count: an answer that claims nothing
    earns 0.

    Raises:
        UserError: the judge of the task cannot be read.
    """
    judge = load_judge(task.metadata[JUDGE])
    if len(answer) > LONGEST:
        return Reward(0.0, {"faithful": 0.0, "complete": 0.0}, {"too_long": len(answer)})
    verdicts = dict(judge.verdicts(task.metadata[CONTEXT], answer))
    unsupported = [sentence for sentence, probability in verdicts.items() if probability < SUPPORTED]
    faithful = 1 - len(unsupported) / len(verdicts) if verdicts else 0.0
    expected = task.metadata.get(EXPECTED, ())
    complete = sum(text in answer for text in expected) / len(expected) if expected else 1.0
    parts = {"faithful": faithful, "complete": complete}
    return Reward(faithful * complete, parts, {"unsupported": unsupported[:_SHOWN]})
