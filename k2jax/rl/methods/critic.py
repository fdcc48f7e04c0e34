"""The critic in the loop: rewards by comparison, the policy's own training as a judge, and how good a judge it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import contextlib

from k2jax.agents.episode_key import pairs_seed
from k2jax.agents.judges.judge import Judge, JudgeAnswer, Place
from k2jax.agents.judges.judge_formats import OTHER, Comparison
from k2jax.agents.judges.pairwise import Answer, Pair, Tournament
from k2jax.agents.judges.refinement import VerifiedPair, draw_pairs, judge_tasks, verified_pairs
from k2jax.agents.judges.rubrics import Rubric, fingerprint, rubrics_for
from k2jax.agents.judges.verdict_metrics import JudgedPair, Verdict, verdict_metrics
from k2jax.agents.mixture import CRITIC, DrawnTask
from k2jax.agents.task import Task
from k2jax.config.schema import Config
from k2jax.errors import InfrastructureError, UserError, abbreviate
from k2jax.rl.evaluation import open_policy
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.groups import PromptGroup, class_of
from k2jax.rl.methods.base import Method, Methods, Parts, refuse_images
from k2jax.rl.methods.judges import Gather, check_critic, open_judge, read_rubrics, uses_critic
from k2jax.rl.sampler import Sampler
from k2jax.train.run import Run, say
from k2jax.trajectory.annotations import PairVerdict, set_comparisons
from k2jax.trajectory.steps import POLICY

Answered = JudgeAnswer | InfrastructureError
_UNREADABLE_SHARE = 0.1  # of verdicts, from which on it is said
_SHOWN = 200  # characters of an unreadable answer


class Critic(Method):
    """Judges the groups of an iteration, and makes tasks for the judge of what verifiers know.

    Args:
        config: the experiment.
        rubrics: those of all tasks.
        parts: of the run whose judge ``begin`` opens; None where ``judge_with`` is called instead.
    """

    scope = "iteration"

    def __init__(self, config: Config, rubrics: tuple[Rubric, ...], parts: Parts | None = None):
        self._rl, self._seed, self._rubrics, self._parts = config.rl, config.train.seed, rubrics, parts
        self._judge: Judge | None = None
        self._gather: Gather = asyncio.gather

    @staticmethod
    def used(config: Config) -> bool:
        """Whether anything is judged by comparison, or trains the judge."""
        return uses_critic(config.rl)

    @staticmethod
    def check(config: Config) -> None:
        """See ``check_critic``; judges see no images."""
        check_critic(config)
        refuse_images(config, "rl.critic", uses_critic(config.rl))

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> Critic:
        """See ``Method``; the rubrics are part of the run's identity."""
        if rubrics := read_rubrics(parts.config.rl):
            parts.identity["set of rubrics"] = fingerprint(rubrics)
        return cls(parts.config, rubrics, parts)

    def judge_with(self, judge: Judge, gather: Gather) -> None:
        """Sets the judge, and what runs the coroutines that ask it."""
        self._judge, self._gather = judge, gather

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Opens the judge of the run."""
        parts, episodes = self._parts, sampler.episodes
        asked = episodes.roles.client_of(parts.config.rl.critic.role or POLICY)
        opened = {"event_loop": parts.event_loop, "opened": parts.opened}
        self.judge_with(*open_judge(parts.config, asked, log=episodes.scorer.log, **opened))

    async def rewards(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Sets the wins of groups of the classes whose rewards have them as a term, or as all that there is."""
        await self.compare([group for group in groups if self._gives(group)])

    async def compare(self, groups: Sequence[PromptGroup]) -> None:
        """Sets the wins of complete groups, and masks samples about which the judge could not be asked.

        What the judge said of a pair stands in the trajectory of its first sample.
        """
        tournaments = [Tournament(group.prompt.task, group.trajectories) for group in groups]
        asked = [(number, pair) for number, tournament in enumerate(tournaments) for pair in tournament.pairs()]
        said = await self._both_orders(
            [
                (group.prompt.task, tournament.comparison(pair), _place(group, tournament, pair))
                for number, pair in asked
                for group, tournament in [(groups[number], tournaments[number])]
            ]
        )
        if warning := _unreadable(said):
            say(warning)
        verdicts: list[dict[Pair, tuple[Answer, Answer]]] = [{} for _ in groups]
        words: list[dict[int, list[PairVerdict]]] = [{} for _ in groups]
        for (number, pair), answers in zip(asked, said, strict=True):
            verdicts[number][pair] = _choice(answers[0]), _choice(answers[1])
            one, two = (tournaments[number].answers[place].sample for place in pair)
            rubrics = self._rubrics_of(groups[number].prompt.task)
            words[number].setdefault(one, []).append(_pair_verdict(two, answers, rubrics))
        for group, of_group in zip(groups, words, strict=True):
            for sample, of_sample in of_group.items():
                set_comparisons(group.trajectories[sample], of_sample)
        for group, tournament, of_group in zip(groups, tournaments, verdicts, strict=True):
            group.judged = tournament.judged(of_group)
            for sample, reward in tournament.rewards(of_group).items():
                trajectory = group.trajectories[sample]
                if isinstance(reward, InfrastructureError):
                    trajectory.status, trajectory.error = "masked", f"{type(reward).__name__}: {reward}"
                    continue
                group.wins[sample] = reward.value
                if not self._is_verified(group):
                    trajectory.reward = reward

    def prompts(self, step: int, groups: Sequence[PromptGroup]) -> list[DrawnTask]:
        """The closed loop's tasks of an iteration: pairs of its verified responses, each in both orders, in this order.

        There are fewer than ``rl.critic.share`` asks for where too few prompts have responses of different rewards.
        """
        rl = self._rl
        if not rl.critic.share:
            return []
        count = max(1, round(rl.critic.share * rl.rollout.prompts / 2))
        pairs = draw_pairs(self._verified(groups), count, pairs_seed(self._seed, step), self._fits)
        return [
            DrawnTask(CRITIC, task)
            for number, pair in enumerate(pairs)
            for task in judge_tasks(pair, rl.critic.format, self._rubrics_of(pair.task), f"{step}/{number}")
        ]

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, float]:
        """``verdict_metrics`` of the judge whose verdicts gave rewards, and of the policy's in the closed loop."""
        judged = verdict_metrics([pair for group in groups for pair in group.judged])
        refinement = refinement_metrics([group for group in groups if group.prompt.kind == CRITIC])
        metrics = {"critic": judged, "refinement": refinement}
        return {f"{name}/{key}": value for name, own in metrics.items() if own["pairs"] for key, value in own.items()}

    async def evaluate(self, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics ``eval/judge/...`` of the judge on verified pairs of some groups, one of each prompt at most."""
        pairs = draw_pairs([pairs[:1] for pairs in self._verified(groups)], len(groups), 0, self._fits)
        judged = [pair for pair in await self.judged(pairs) if pair is not None]
        return {f"eval/judge/{name}": value for name, value in verdict_metrics(judged).items()}

    async def judged(self, pairs: Sequence[VerifiedPair]) -> list[JudgedPair | None]:
        """What the judge says of pairs whose better answer is known; None of one that it could not be asked about."""
        asked = [(pair.task, pair.comparison(), Place(pair.key, pair.worse_sample)) for pair in pairs]
        judged: list[JudgedPair | None] = []
        for pair, answered in zip(pairs, await self._both_orders(asked), strict=True):
            said = [_choice(each) for each in answered]
            if any(isinstance(each, InfrastructureError) for each in said):
                judged.append(None)
                continue
            lengths = len(pair.better), len(pair.worse)
            forth = Verdict(said[0], *lengths, truth="first")
            judged.append(JudgedPair(forth, Verdict(said[1], *lengths[::-1], truth=OTHER["first"])))
        return judged

    async def _both_orders(self, asked: Sequence[tuple[Task, Comparison, Place]]) -> list[tuple[Answered, Answered]]:
        """What the judge says of comparisons, each in its order and in the other one."""
        questions = []
        for task, comparison, place in asked:
            rubrics = self._rubrics_of(task)
            questions += [(comparison, rubrics, place), (comparison.swapped(), rubrics, place.swapped())]
        said = await self._gather(*(self._choose(*question) for question in questions))
        return list(zip(said[::2], said[1::2], strict=True))

    async def _choose(self, comparison: Comparison, rubrics: tuple[Rubric, ...], place: Place) -> Answered:
        try:
            return await self._judge.choose(comparison, rubrics, place)
        except InfrastructureError as error:
            return error

    def _verified(self, groups: Sequence[PromptGroup]) -> list[list[VerifiedPair]]:
        """The verified pairs of every prompt that a verifier has judged."""
        judged = [group for group in groups if group.prompt.task.verifier and self._is_verified(group)]
        return [verified_pairs(group.prompt.task, group.trajectories) for group in judged]

    def _fits(self, pair: VerifiedPair) -> bool:
        return self._judge.prompt(pair.comparison(), self._rubrics_of(pair.task)) is not None

    def _gives(self, group: PromptGroup) -> bool:
        """Whether the wins of a group count; an evaluation's never do."""
        if group.purpose != "train" or group.prompt.kind == CRITIC:
            return False
        return self._rl.tasks[group.prompt.kind].is_judged

    def _is_verified(self, group: PromptGroup) -> bool:
        """Whether a group's own rewards are the truth, and not this critic's."""
        return group.purpose != "train" or class_of(self._rl, group).is_verified

    def _rubrics_of(self, task: Task) -> tuple[Rubric, ...]:
        return rubrics_for(task, self._rubrics)


def _unreadable(said: Sequence[tuple[Answered, Answered]]) -> str:
    """A line for the console where more than a tenth of the verdicts cannot be read, with the first of them."""
    answers = [each for both in said for each in both if isinstance(each, JudgeAnswer)]
    unreadable = [each.said for each in answers if each.choice is None]
    if len(unreadable) <= _UNREADABLE_SHARE * len(answers):
        return ""
    return (
        f"{len(unreadable):,} of {len(answers):,} answers of the judge have no verdict that can be read, the first one "
        f"{abbreviate(unreadable[0][-_SHOWN:], _SHOWN)}; raise rl.critic.max_tokens where they are cut"
    )


def _place(group: PromptGroup, tournament: Tournament, pair: Pair) -> Place:
    return Place(group.episode(tournament.answers[pair.one].sample), tournament.answers[pair.two].sample)


def _choice(answered: Answered) -> Answer:
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
            JudgedPair(_verdict(forth, sample), _verdict(back, sample))
            for forth, back in zip(ordered[::2], ordered[1::2], strict=True)
            for sample in range(len(forth.trajectories))
            if "masked" not in (forth.trajectories[sample].status, back.trajectories[sample].status)
        ]
    )


def _verdict(group: PromptGroup, sample: int) -> Verdict:
    metadata = group.prompt.task.metadata
    choice = group.trajectories[sample].reward.info.get("choice")
    return Verdict(choice, *metadata["lengths"], truth=metadata["verdict"])


def judge_with_checkpoint(config: Config, checkpoint: str, pairs: Sequence[VerifiedPair]) -> list[JudgedPair | None]:
    """Asks any checkpoint which answer of each pair is better, in both orders, with a new engine.

    Args:
        config: ``rl.critic`` is the judge, which has to be the policy, in ``data.chat_format``; ``rl.rollout`` sizes
            the engine.
        checkpoint: a checkpoint argument.
        pairs: their better answers are known.

    Returns:
        What it says of every pair, for ``verdict_metrics``.

    Raises:
        UserError: a checkpoint or rubrics that cannot be read, or a config that has no critic.
    """
    if not uses_critic(config.rl) or config.rl.critic.judge != "policy":
        raise UserError("config.rl has no policy that judges; set rl.critic.share, and rl.critic.judge to policy")
    critic = Critic(config, read_rubrics(config.rl))
    with EventLoop() as event_loop, contextlib.ExitStack() as opened:
        critic.judge_with(
            *open_judge(config, open_policy(config, checkpoint), log=None, event_loop=event_loop, opened=opened)
        )
        return event_loop.run(critic.judged(pairs))
