"""Rewards of the responses to one prompt from comparisons of every two of them, each in both orders.

A judge who prefers a place and not an answer contradicts itself in the other order, and such a pair is a tie. Some
pairs need no judge: equal answers tie, and an answer that was cut or that fails the hack-check loses to all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.agents.errors import VerifierError
from k2jax.agents.judges.hack_check import is_hack
from k2jax.agents.judges.judge_formats import OTHER, Choice, Comparison, question_of
from k2jax.agents.judges.verdict_metrics import JudgedPair, Verdict
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError
from k2jax.trajectory import Reward, Trajectory

WIN, TIE, LOSS = 1.0, 0.5, 0.0
UNKNOWN = float("nan")
"""Outcome of a pair about which there is no verdict: the judge could not be asked, or said nothing that can be read."""

Answer = Choice | None | InfrastructureError
"""What a judge said in one order: a verdict, nothing that can be read, or why it could not be asked."""


class Contender(NamedTuple):
    """One response to a prompt.

    Attributes:
        sample: its number in the group.
        text: what the judge reads.
        barred: why it gets nothing, ``cut`` or ``hacked``; empty where the judge decides.
    """

    sample: int
    text: str
    barred: str = ""


class Pair(NamedTuple):
    """A pair that a judge has to decide: places in the list of answers."""

    one: int
    two: int


class Tournament:
    """The answers to one prompt and what is known of their pairs."""

    def __init__(self, task: Task, trajectories: Sequence[Trajectory]):
        """A tournament of the responses that are ``finished`` or ``truncated``; masked ones take no part."""
        self.question = question_of(task)
        self.answers = [
            Contender(sample, trajectory.answer, _barred(task, trajectory))
            for sample, trajectory in enumerate(trajectories)
            if trajectory.status in ("finished", "truncated")
        ]

    def pairs(self) -> list[Pair]:
        """The pairs for the judge: two different answers of which none is barred."""
        places = itertools.combinations(range(len(self.answers)), 2)
        return [Pair(*two) for two in places if _decided(*(self.answers[place] for place in two)) is None]

    def comparison(self, pair: Pair) -> Comparison:
        """What the judge reads first; in the other order it is ``swapped``."""
        return Comparison(self.question, self.answers[pair.one].text, self.answers[pair.two].text)

    def wins(self, replies: Mapping[Pair, tuple[Answer, Answer]]) -> np.ndarray:
        """Outcomes, float64 ``[N, N]``: entry ``[i, j]`` is what answer i has against answer j.

        Args:
            replies: of every pair, in the order of the list and in the other one.

        Returns:
            WIN, TIE, LOSS or UNKNOWN; the diagonal is 0 and means nothing.
        """
        wins_NN = np.zeros((len(self.answers), len(self.answers)))
        for pair in itertools.starmap(Pair, itertools.combinations(range(len(self.answers)), 2)):
            decided = _decided(self.answers[pair.one], self.answers[pair.two])
            wins_NN[pair.one, pair.two], wins_NN[pair.two, pair.one] = decided or both_orders(*replies[pair])
        return wins_NN

    def rewards(self, replies: Mapping[Pair, tuple[Answer, Answer]]) -> dict[int, Reward | InfrastructureError]:
        """The reward of every sample: its mean win over the others.

        A pair about which the judge said nothing that can be read is left out of the mean. An error takes the place of
        a reward where the judge could not be asked about a pair of the answer, and where no pair of it is left. A
        barred answer gets 0, also beside other barred ones and where nothing is known; an answer without others gets
        that of a tie.
        """
        wins_NN = self.wins(replies)
        rewards: dict[int, Reward | InfrastructureError] = {}
        for place, answer in enumerate(self.answers):
            outcomes = np.delete(wins_NN[place], place)
            others = outcomes[~np.isnan(outcomes)]
            info = {"won": int((others == WIN).sum()), "tied": int((others == TIE).sum()), "of": len(others)}
            if answer.barred:
                rewards[answer.sample] = Reward(LOSS, info=info | {answer.barred: True})
            elif error := _first_error({pair: said for pair, said in replies.items() if place in pair}):
                rewards[answer.sample] = error
            elif len(outcomes) and not len(others):
                rewards[answer.sample] = VerifierError("the judge gave no verdict that can be read on any pair of it")
            else:
                rewards[answer.sample] = Reward(mean_win(others), info=info)
        return rewards

    def judged(self, replies: Mapping[Pair, tuple[Answer, Answer]]) -> list[JudgedPair]:
        """What the judge said of every pair that it could be asked about, for its metrics."""
        judged = []
        for pair, (forth, back) in replies.items():
            if isinstance(forth, InfrastructureError) or isinstance(back, InfrastructureError):
                continue
            lengths = len(self.answers[pair.one].text), len(self.answers[pair.two].text)
            judged.append(JudgedPair(Verdict(forth, *lengths), Verdict(back, *lengths[::-1])))
        return judged


def mean_win(outcomes: np.ndarray) -> float:
    """The mean of one answer's outcomes against the others; a tie where there are none."""
    return float(outcomes.mean()) if len(outcomes) else TIE


def both_orders(forth: Answer, back: Answer) -> tuple[float, float]:
    """Outcomes of the first and the second answer of a pair, from what was said in its order and in the other one.

    A verdict counts where both orders name the same answer. Anything else is a tie: contradiction, a tie in one of the
    orders, or one answer of the judge without a verdict. Two of these say nothing about the pair.
    """
    if isinstance(forth, InfrastructureError) or isinstance(back, InfrastructureError) or forth is back is None:
        return UNKNOWN, UNKNOWN
    if forth in (None, "tie") or back != OTHER[forth]:
        return TIE, TIE
    return (WIN, LOSS) if forth == "first" else (LOSS, WIN)


def _decided(one: Contender, two: Contender) -> tuple[float, float] | None:
    """The outcomes of a pair that needs no judge."""
    if one.barred or two.barred:
        return (LOSS if one.barred else WIN), (LOSS if two.barred else WIN)
    return (TIE, TIE) if one.text == two.text else None


def _barred(task: Task, trajectory: Trajectory) -> str:
    if trajectory.status == "truncated":
        return "cut"
    return "hacked" if is_hack(task, trajectory.answer) else ""


def _first_error(replies: Mapping[Pair, tuple[Answer, Answer]]) -> InfrastructureError | None:
    every = itertools.chain.from_iterable(replies.values())
    return next((each for each in every if isinstance(each, InfrastructureError)), None)
