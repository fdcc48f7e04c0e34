"""Rewards of the responses to one prompt from comparisons of every two of them, each in both orders.

A judge who prefers a place and not an answer contradicts itself in the other order, and such a pair is a tie. Some
pairs need no judge: equal answers tie, and an answer that was cut or that fails the hack-check loses to all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.agents.judges.hack_check import is_hack
from k2jax.agents.judges.judge_formats import OTHER, Choice, Comparison, question_of
from k2jax.agents.judges.verdict_metrics import JudgedPair, Judgement
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError
from k2jax.trajectory import Reward, Trajectory

WIN, TIE, LOSS = 1.0, 0.5, 0.0
UNKNOWN = float("nan")
"""Outcome of a pair about which the infrastructure withheld a verdict."""

Said = Choice | None | InfrastructureError
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


class Bout(NamedTuple):
    """A pair that a judge has to decide: places in the list of answers."""

    one: int
    two: int


class Contest:
    """The answers to one prompt and what is known of their pairs."""

    def __init__(self, task: Task, trajectories: Sequence[Trajectory]):
        """A contest of the responses that are ``finished`` or ``truncated``; masked ones take no part."""
        self.question = question_of(task)
        self.answers = [
            Contender(sample, trajectory.answer, _barred(task, trajectory))
            for sample, trajectory in enumerate(trajectories)
            if trajectory.status in ("finished", "truncated")
        ]

    def bouts(self) -> list[Bout]:
        """The pairs for the judge: two different answers of which none is barred."""
        pairs = itertools.combinations(range(len(self.answers)), 2)
        return [Bout(*pair) for pair in pairs if _decided(*(self.answers[place] for place in pair)) is None]

    def comparison(self, bout: Bout) -> Comparison:
        """What the judge reads first; in the other order it is ``swapped``."""
        return Comparison(self.question, self.answers[bout.one].text, self.answers[bout.two].text)

    def wins(self, said: Mapping[Bout, tuple[Said, Said]]) -> np.ndarray:
        """Outcomes, float64 ``[N, N]``: entry ``[i, j]`` is what answer i has against answer j.

        Args:
            said: of every bout, in the order of the list and in the other one.

        Returns:
            WIN, TIE, LOSS or UNKNOWN; the diagonal is 0 and means nothing.
        """
        wins_NN = np.zeros((len(self.answers), len(self.answers)))
        for pair in itertools.combinations(range(len(self.answers)), 2):
            bout = Bout(*pair)
            decided = _decided(self.answers[bout.one], self.answers[bout.two])
            wins_NN[bout.one, bout.two], wins_NN[bout.two, bout.one] = decided or both_orders(*said[bout])
        return wins_NN

    def rewards(self, said: Mapping[Bout, tuple[Said, Said]]) -> dict[int, Reward | InfrastructureError]:
        """The reward of every sample: its mean win over the others; an error for one with an unknown outcome.

        A barred answer gets 0, also beside other barred ones and where nothing is known; an answer without others
        gets that of a tie.
        """
        wins_NN, failed = self.wins(said), _first_error(said)
        rewards: dict[int, Reward | InfrastructureError] = {}
        for place, answer in enumerate(self.answers):
            others = np.delete(wins_NN[place], place)
            info = {"won": int((others == WIN).sum()), "tied": int((others == TIE).sum()), "of": len(others)}
            if answer.barred:
                rewards[answer.sample] = Reward(LOSS, info=info | {answer.barred: True})
            elif np.isnan(others).any():
                rewards[answer.sample] = failed
            else:
                rewards[answer.sample] = Reward(mean_win(others), info=info)
        return rewards

    def judged(self, said: Mapping[Bout, tuple[Said, Said]]) -> list[JudgedPair]:
        """What the judge said of every bout that it could be asked about, for its metrics."""
        pairs = []
        for bout, (forth, back) in said.items():
            if isinstance(forth, InfrastructureError) or isinstance(back, InfrastructureError):
                continue
            lengths = len(self.answers[bout.one].text), len(self.answers[bout.two].text)
            pairs.append(JudgedPair(Judgement(forth, *lengths), Judgement(back, *lengths[::-1])))
        return pairs


def mean_win(outcomes: np.ndarray) -> float:
    """The mean of one answer's outcomes against the others; a tie where there are none."""
    return float(outcomes.mean()) if len(outcomes) else TIE


def both_orders(forth: Said, back: Said) -> tuple[float, float]:
    """Outcomes of the first and the second answer of a pair, from what was said in its order and in the other one.

    A verdict counts where both orders name the same answer. Anything else is a tie: contradiction, a tie in one of the
    orders, or an answer of the judge without a verdict, which is the judge's mistake and nobody else's.
    """
    if isinstance(forth, InfrastructureError) or isinstance(back, InfrastructureError):
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


def _first_error(said: Mapping[Bout, tuple[Said, Said]]) -> InfrastructureError | None:
    every = itertools.chain.from_iterable(said.values())
    return next((each for each in every if isinstance(each, InfrastructureError)), None)
