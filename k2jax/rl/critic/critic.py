"""The critic in the loop: rewards by comparison, the policy's own training as a judge, and how good a judge it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from k2jax import processes
from k2jax.agents.judges.judge import Judge, JudgeAnswer, Place
from k2jax.agents.judges.judge_formats import OTHER, Comparison
from k2jax.agents.judges.pairwise import Bout, Contest, Said
from k2jax.agents.judges.refinement import VerifiedPair, draw_pairs, judge_tasks, verified_pairs
from k2jax.agents.judges.rubrics import Rubric, rubrics_for
from k2jax.agents.judges.verdict_metrics import JudgedPair, Judgement, verdict_metrics
from k2jax.agents.seeds import derived_seed
from k2jax.agents.task import Task
from k2jax.config.schema import RLConfig
from k2jax.errors import InfrastructureError
from k2jax.rl.tasks import CRITIC, DrawnTask
from k2jax.trajectory.annotations import PairVerdict, set_comparisons

if TYPE_CHECKING:
    from k2jax.rl.rollouts import PromptGroup

Gather = Callable[..., Coroutine[Any, Any, list[Any]]]
Answered = JudgeAnswer | InfrastructureError
_DRAW = -2  # in the place of a turn, in the seed of the choice of pairs


class Critic:
    """Judges the groups of an iteration, and makes tasks for the judge of what verifiers know.

    Args:
        rl: the run's settings.
        judge: who compares.
        rubrics: those of all tasks.
        gather: runs coroutines that ask the judge; a lockstep client's, where the judge is the policy itself.
        seed: of the run.
    """

    def __init__(
        self, rl: RLConfig, judge: Judge, rubrics: tuple[Rubric, ...], gather: Gather = asyncio.gather, *, seed: int = 0
    ):
        self._rl, self._judge, self._rubrics, self._gather, self._seed = rl, judge, rubrics, gather, seed
        self.is_policy = rl.critic.judge == "policy"

    def rewards(self, group: PromptGroup) -> bool:
        """Whether a group's rewards are this critic's."""
        return group.prompt.kind != CRITIC and self._rl.tasks[group.prompt.kind].reward == "critic"

    async def compare(self, groups: Sequence[PromptGroup]) -> None:
        """Sets the rewards of complete groups, and masks samples about which the judge could not be asked.

        What the judge said of a pair stands in the trajectory of its first sample.
        """
        contests = [Contest(group.prompt.task, group.trajectories) for group in groups]
        asked = [(number, bout) for number, contest in enumerate(contests) for bout in contest.bouts()]
        said = await self._both_orders(
            [
                (group.prompt.task, contest.comparison(bout), _place(group, contest, bout))
                for number, bout in asked
                for group, contest in [(groups[number], contests[number])]
            ]
        )
        verdicts: list[dict[Bout, tuple[Said, Said]]] = [{} for _ in groups]
        words: list[dict[int, list[PairVerdict]]] = [{} for _ in groups]
        for (number, bout), of_bout in zip(asked, said, strict=True):
            verdicts[number][bout] = _choice(of_bout[0]), _choice(of_bout[1])
            one, two = (contests[number].answers[place].sample for place in bout)
            rubrics = self._rubrics_of(groups[number].prompt.task)
            words[number].setdefault(one, []).append(_pair_verdict(two, of_bout, rubrics))
        for group, of_group in zip(groups, words, strict=True):
            for sample, of_sample in of_group.items():
                set_comparisons(group.trajectories[sample], of_sample)
        for group, contest, of_group in zip(groups, contests, verdicts, strict=True):
            group.judged = contest.judged(of_group)
            for sample, reward in contest.rewards(of_group).items():
                trajectory = group.trajectories[sample]
                if isinstance(reward, InfrastructureError):
                    trajectory.status, trajectory.error = "masked", f"{type(reward).__name__}: {reward}"
                else:
                    trajectory.reward = reward

    def refinement(self, step: int, groups: Sequence[PromptGroup]) -> list[DrawnTask]:
        """The closed loop's tasks of an iteration: pairs of its verified responses, each in both orders, in this order.

        There are fewer than ``rl.critic.share`` asks for where too few prompts have responses of different rewards.
        """
        rl = self._rl
        if not rl.critic.share:
            return []
        count = max(1, round(rl.critic.share * rl.rollout.prompts / 2))
        pairs = draw_pairs(self._verified(groups), count, derived_seed(self._seed, (step, 0, 0), _DRAW), self._fits)
        return [
            DrawnTask(CRITIC, task)
            for number, pair in enumerate(pairs)
            for task in judge_tasks(pair, rl.critic.format, self._rubrics_of(pair.task), f"{step}/{number}")
        ]

    async def evaluate(self, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics ``eval/judge/...`` of the judge on verified pairs of some groups, one of each prompt at most.

        An endpoint is asked by the first process alone, which writes the metrics.
        """
        if not (self.is_policy or processes.is_first()):
            return {}
        pairs = draw_pairs([pairs[:1] for pairs in self._verified(groups)], len(groups), 0, self._fits)
        judged = [pair for pair in await self.judged(pairs) if pair is not None]
        return {f"eval/judge/{name}": value for name, value in verdict_metrics(judged).items()}

    async def judged(self, pairs: Sequence[VerifiedPair]) -> list[JudgedPair | None]:
        """What the judge says of pairs whose better answer is known; None of one that it could not be asked about."""
        asked = [(pair.task, pair.comparison(), Place(*pair.key, *pair.samples)) for pair in pairs]
        judged: list[JudgedPair | None] = []
        for pair, answered in zip(pairs, await self._both_orders(asked), strict=True):
            said = [_choice(each) for each in answered]
            if any(isinstance(each, InfrastructureError) for each in said):
                judged.append(None)
                continue
            lengths = len(pair.better), len(pair.worse)
            forth = Judgement(said[0], *lengths, truth="first")
            judged.append(JudgedPair(forth, Judgement(said[1], *lengths[::-1], truth=OTHER["first"])))
        return judged

    async def _both_orders(self, asked: Sequence[tuple[Task, Comparison, Place]]) -> list[tuple[Answered, Answered]]:
        """What the judge says of comparisons, each in its order and in the other one."""
        questions = []
        for task, comparison, place in asked:
            rubrics, back = self._rubrics_of(task), place._replace(first=place.second, second=place.first)
            questions += [(comparison, rubrics, place), (comparison.swapped(), rubrics, back)]
        said = await self._gather(*(self._choose(*question) for question in questions))
        return list(zip(said[::2], said[1::2], strict=True))

    async def _choose(self, comparison: Comparison, rubrics: tuple[Rubric, ...], place: Place) -> Answered:
        try:
            return await self._judge.choose(comparison, rubrics, place)
        except InfrastructureError as error:
            return error

    def _verified(self, groups: Sequence[PromptGroup]) -> list[list[VerifiedPair]]:
        """The verified pairs of every prompt that a verifier has judged."""
        judged = [group for group in groups if group.prompt.task.verifier and not self._gave(group)]
        return [verified_pairs(group.prompt.task, group.trajectories) for group in judged]

    def _fits(self, pair: VerifiedPair) -> bool:
        return self._judge.prompt(pair.comparison(), self._rubrics_of(pair.task)) is not None

    def _gave(self, group: PromptGroup) -> bool:
        """Whether the rewards of a group are this critic's own, which are no truth; an evaluation's never are."""
        return group.key[0] > 0 and self.rewards(group)

    def _rubrics_of(self, task: Task) -> tuple[Rubric, ...]:
        return rubrics_for(task, self._rubrics)


def _place(group: PromptGroup, contest: Contest, bout: Bout) -> Place:
    return Place(*group.key, contest.answers[bout.one].sample, contest.answers[bout.two].sample)


def _choice(answered: Answered) -> Said:
    return answered.choice if isinstance(answered, JudgeAnswer) else answered


def _pair_verdict(other: int, answered: tuple[Answered, Answered], rubrics: tuple[Rubric, ...]) -> PairVerdict:
    """What the page of trajectories shows of a pair whose first sample is the own one."""
    criteria = tuple(f"{each.name} ({each.kind}{', mandatory' if each.mandatory else ''})" for each in rubrics)
    for each in answered:
        if isinstance(each, InfrastructureError):
            return PairVerdict(other, rubrics=criteria, error=f"{type(each).__name__}: {each}")
    forth, back = answered
    return PairVerdict(other, (forth.choice or "", back.choice or ""), (forth.said, back.said), criteria)


def refinement_metrics(groups: Sequence[PromptGroup]) -> dict[str, float]:
    """``verdict_metrics`` of the closed loop's sampled verdicts.

    Args:
        groups: of the class CRITIC, with both orders of every pair; a sample of one order is paired with the sample of
            the same number of the other.
    """
    ordered = sorted(groups, key=lambda group: group.key)
    return verdict_metrics(
        [
            JudgedPair(_judgement(forth, sample), _judgement(back, sample))
            for forth, back in zip(ordered[::2], ordered[1::2], strict=True)
            for sample in range(len(forth.trajectories))
            if "masked" not in (forth.trajectories[sample].status, back.trajectories[sample].status)
        ]
    )


def _judgement(group: PromptGroup, sample: int) -> Judgement:
    metadata = group.prompt.task.metadata
    choice = group.trajectories[sample].reward.info.get("choice")
    return Judgement(choice, *metadata["lengths"], truth=metadata["verdict"])
