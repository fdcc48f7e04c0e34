"""Closed-loop refinement: pairs of responses of which one is known to be better become tasks for the judge.

On prompts with a verifier, the truth about two responses of different rewards is known. Each such pair is put to the
policy in both orders, as two tasks whose verifier knows the verdict (Kimi K2, section 3.2.2): what helps in one order
and hurts in the other, such as a liking for a place, earns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools
from typing import Any, NamedTuple

import numpy as np

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.judges.hack_check import is_hack
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS, OTHER, Choice, Comparison, question_of
from k2jax.agents.judges.rubrics import Rubric
from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.trajectory import Reward, Trajectory

VERIFIER = "known_verdict"
"""Name of the verifier of these tasks."""


class VerifiedPair(NamedTuple):
    """Two responses to a prompt of which the first is the better one.

    Attributes:
        task: of the prompt.
        better: text of the response with the larger reward.
        worse: text of the other one.
        key: of the episode of the better one.
        worse_sample: number of the other one in the group.
    """

    task: Task
    better: str
    worse: str
    key: EpisodeKey
    worse_sample: int

    def comparison(self) -> Comparison:
        """The pair with the better answer first."""
        return Comparison(question_of(self.task), self.better, self.worse)


def verified_pairs(task: Task, trajectories: Sequence[Trajectory]) -> list[VerifiedPair]:
    """All pairs of finished responses to which a verifier gave different rewards, without those that are hacks."""
    finished = [
        trajectory
        for trajectory in trajectories
        if trajectory.status == "finished" and trajectory.reward is not None and not is_hack(task, trajectory.answer)
    ]
    return [
        VerifiedPair(task, better.answer, worse.answer, EpisodeKey.of(better), worse.key[2])
        for better, worse in itertools.permutations(finished, 2)
        if better.reward.value > worse.reward.value and better.answer != worse.answer
    ]


def draw_pairs(
    pairs_by_prompt: Sequence[Sequence[VerifiedPair]], count: int, seed: int, fits: Callable[[VerifiedPair], bool]
) -> list[VerifiedPair]:
    """At most ``count`` pairs, spread over the prompts: a second one of a prompt only after the first of all others.

    Args:
        pairs_by_prompt: of every prompt, often none.
        count: most pairs.
        seed: of the choice and of the order.
        fits: whether the judge can read a pair; asked of no more pairs than needed.
    """
    rng = np.random.default_rng(seed)
    shuffled = [[pairs[index] for index in rng.permutation(len(pairs))] for pairs in pairs_by_prompt]
    order = [shuffled[index] for index in rng.permutation(len(shuffled))]
    rounds = itertools.zip_longest(*order)
    chosen = (pair for pairs in rounds for pair in pairs if pair is not None and fits(pair))
    return list(itertools.islice(chosen, count))


def judge_tasks(pair: VerifiedPair, style: str, rubrics: Sequence[Rubric], pair_id: str) -> tuple[Task, Task]:
    """The tasks of judging a pair, with the better answer first and with it second.

    Args:
        pair: what is judged.
        style: name of the judge's format.
        rubrics: those of the pair's task.
        pair_id: begins the tasks' ids.
    """
    comparison = pair.comparison()
    forth = _task(comparison, "first", style, rubrics, f"{pair_id}/AB")
    return forth, _task(comparison.swapped(), OTHER["first"], style, rubrics, f"{pair_id}/BA")


def _task(comparison: Comparison, verdict: Choice, style: str, rubrics: Sequence[Rubric], task_id: str) -> Task:
    question = JUDGE_FORMATS[style].ask(comparison, rubrics)
    metadata: dict[str, Any] = {
        "verdict": verdict,
        "format": style,
        "lengths": [len(comparison.first), len(comparison.second)],
    }
    return Task(task_id, "critic", ({"role": "user", "content": question},), VERIFIER, metadata=metadata)


@judges_every_answer(lambda task: JUDGE_FORMATS[task.metadata["format"]].write(task.metadata["verdict"], ""))
def known_verdict(task: Task, answer: str) -> Reward:
    """Verifier: 1 if the answer is the right verdict, else 0."""
    choice = JUDGE_FORMATS[task.metadata["format"]].read(answer)
    return Reward(float(choice == task.metadata["verdict"]), info={"choice": choice})
