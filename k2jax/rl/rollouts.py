"""The rollouts of an iteration: groups of responses by the engine, scored while others are still generated.

What an iteration samples is a function of the weights, the step and the responses that wait to go on. Engine and
coroutines run in lockstep, so that a run that is killed and resumed samples the same tokens with the same rounding.
Verdicts do not influence generation: they are awaited outside of the lockstep.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import numpy as np

from k2jax import processes
from k2jax.agents.episode import Start, run_episode
from k2jax.agents.judges.verdict_metrics import JudgedPair
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.wiring import EnvironmentMaker
from k2jax.client import Sampling
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.rl.critic.critic import Critic
from k2jax.rl.schedules import sampling_temperature
from k2jax.rl.sub_episodes import EpisodeParts, SubEpisodes
from k2jax.rl.tasks import DrawnTask, TaskMixture, class_config
from k2jax.text.chat import ChatFormat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.encoding import decode, encode


@dataclasses.dataclass(eq=False)
class PromptGroup:
    """The responses to one prompt.

    Attributes:
        number: of the prompt in the run.
        key: (step in which it began, place among that step's prompts).
        prompt: class and task.
        trajectories: one for each sample; None before it began.
        judged: what a critic said of pairs of them.
    """

    number: int
    key: tuple[int, int]
    prompt: DrawnTask
    trajectories: list[Trajectory | None]
    judged: list[JudgedPair] = dataclasses.field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether no response goes on in a later iteration."""
        return all(trajectory is not None and trajectory.status != "unfinished" for trajectory in self.trajectories)


class Rollouts:
    """Generates and scores the groups of each iteration.

    Args:
        config: the experiment.
        mixture: prompts.
        client: over the engine.
        chat: format of conversations.
        tokenizer: its vocabulary.
        scorer: verifiers; only the first process asks them.
        critic: judge of comparisons, in runs that have one.
        media: reads the images of messages; None for a model of text alone.

    Attributes:
        sampled_tokens: of the last ``collect``, of groups that are complete or wait.
    """

    def __init__(
        self,
        config: Config,
        mixture: TaskMixture,
        client: LockstepClient,
        chat: ChatFormat,
        tokenizer: Tokenizer,
        scorer: Scorer,
        *,
        critic: Critic | None = None,
        media: MediaReader | None = None,
    ):
        self._config, self._mixture, self._client = config, mixture, client
        self._chat, self._tokenizer, self._scorer = chat, tokenizer, scorer
        self.critic, self._media = critic, media
        self._environments = EnvironmentMaker(config.rl.rollout.sandbox, images=config.rl.images, repositories=None)
        self._drawn = self.sampled_tokens = 0
        self._waiting: list[PromptGroup] = []

    async def collect(self, step: int) -> list[PromptGroup]:
        """Runs an iteration's rollouts and returns the groups whose members are all done, the oldest first.

        Prompts in flight are always ``rl.rollout.prompts``: new ones are drawn where groups have left. Where the policy
        is trained as a judge, groups of its verdicts on these responses are spread among them.
        """
        rollout = self._config.rl.rollout
        fresh = rollout.prompts - len(self._waiting)
        groups = [*self._waiting, *(self._begin(step, place) for place in range(fresh))]
        await self._client.call(lambda engine: engine.drop_prefixes())
        before = _sampled_tokens(groups)
        await self.run(step, groups, rollout.token_cap)
        self.sampled_tokens = _sampled_tokens(groups) - before
        self._waiting = [group for group in groups if not group.complete]
        complete = [group for group in groups if group.complete]
        return _spread(complete, await self._refinement(step, complete))

    async def _refinement(self, step: int, groups: list[PromptGroup]) -> list[PromptGroup]:
        """Groups of the policy's verdicts on pairs of verified responses."""
        if self.critic is None:
            return []
        rollout = self._config.rl.rollout
        drawn = self.critic.refinement(step, groups)
        verdicts = [
            PromptGroup(-1, (step, rollout.prompts + place), prompt, [None] * rollout.samples)
            for place, prompt in enumerate(drawn)
        ]
        await self.run(step, verdicts)
        return verdicts

    async def run(self, step: int, groups: list[PromptGroup], token_cap: int = 0, greedy: int = 0) -> None:
        """Samples and scores every response of some groups that is not done.

        Args:
            step: decides the temperature of responses that begin.
            groups: their trajectories are replaced.
            token_cap: tokens that a response may grow by; 0 is no cap.
            greedy: so many samples of each group, from the first, are not drawn but take the most likely tokens.
        """
        scoring: list[asyncio.Task] = []

        async def respond(group: PromptGroup, sample: int) -> None:
            sampling = self._sampling(group.prompt.kind, step, greedy=sample < greedy)
            start = self._starter(group, step, sample, greedy=sample < greedy)
            trajectory = await self._episode(group, sample, sampling, token_cap, start=_refused if token_cap else start)
            group.trajectories[sample] = trajectory
            if trajectory.status in ("finished", "truncated") and processes.is_first() and self._verified(step, group):
                scoring.append(asyncio.create_task(self._scorer.judge(group.prompt.task, trajectory)))

        unfinished = [
            (group, sample)
            for group in groups
            for sample, trajectory in enumerate(group.trajectories)
            if trajectory is None or trajectory.status == "unfinished"
        ]
        at_a_time = self._config.rl.rollout.concurrency or max(1, len(unfinished))
        for first in range(0, len(unfinished), at_a_time):
            await self._client.gather(*(respond(*each) for each in unfinished[first : first + at_a_time]))
        if self.critic is not None and (self.critic.is_policy or processes.is_first()):
            compared = [group for group in groups if group.complete and step > 0 and self.critic.rewards(group)]
            await self.critic.compare(compared)
        await asyncio.gather(*scoring)
        _share_verdicts(step, [group.trajectories[sample] for group, sample in unfinished])

    def began(self, step: int) -> int:
        """The step in which the oldest group that waits after ``step`` began; the next step where none waits."""
        return min((group.key[0] for group in self._waiting), default=step + 1)

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps of the rollouts: prompts drawn, and groups that wait to go on."""
        waiting = [
            {
                "number": group.number,
                "key": list(group.key),
                "trajectories": [np.frombuffer(encode(trajectory), np.uint8) for trajectory in group.trajectories],
            }
            for group in self._waiting
        ]
        return {"drawn": self._drawn, "waiting": waiting}

    def restore(self, extra: dict[str, Any]) -> None:
        """Goes on from what ``extra`` returned."""
        self._drawn = extra["drawn"]
        self._waiting = [
            PromptGroup(
                saved["number"],
                tuple(saved["key"]),
                self._mixture.prompt(saved["number"]),
                [decode(array.tobytes()) for array in saved["trajectories"]],
            )
            for saved in extra["waiting"]
        ]

    def _begin(self, step: int, place: int) -> PromptGroup:
        number, self._drawn = self._drawn, self._drawn + 1
        return PromptGroup(
            number, (step, place), self._mixture.prompt(number), [None] * self._config.rl.rollout.samples
        )

    async def _episode(
        self, group: PromptGroup, sample: int, sampling: Sampling, token_cap: int, *, start: Start
    ) -> Trajectory:
        task = group.prompt.task
        return await run_episode(
            task,
            self._client,
            self._chat,
            self._tokenizer,
            self._environments.make(task),
            key=(*group.key, sample),
            seed=self._config.train.seed,
            sampling=sampling,
            token_cap=token_cap,
            trajectory=group.trajectories[sample],
            start=start,
            media=self._media,
        )

    def _starter(self, group: PromptGroup, step: int, sample: int, greedy: bool) -> Start:
        """What starts the sub-episodes of an episode."""
        shared = (self._client, self._chat, self._tokenizer, self._environments, self._scorer, self._media)
        sampling = lambda kind: self._sampling(kind, step, greedy)  # noqa: E731
        seed = self._config.train.seed
        return SubEpisodes(
            EpisodeParts(*shared), (*group.key, sample), seed, kind=group.prompt.kind, sampling=sampling
        ).start

    def _verified(self, step: int, group: PromptGroup) -> bool:
        """Whether a verifier judges a group: a critic's rewards are for training, and held-out tasks ask for truth."""
        if step > 0 and self.critic is not None and self.critic.rewards(group):
            return False
        return bool(group.prompt.task.verifier)

    def _sampling(self, kind: str, step: int, greedy: bool) -> Sampling:
        class_of_tasks, evaluation = class_config(self._config.rl, kind), step <= 0
        decayed = 1.0 if evaluation else sampling_temperature(class_of_tasks, step - 1, self._config.train.steps)
        return Sampling(
            max_tokens=class_of_tasks.max_tokens,
            temperature=0.0 if greedy else decayed,
            return_experts=not evaluation and self._config.rl.rollout.routing != "own",
        )


async def _refused(task: Task, kind: str = "") -> Trajectory:
    """In the place of what starts sub-episodes, where the weights may change while an episode waits to go on."""
    raise UserError(
        f"the sub-episode {task.id!r} would be another one when its episode goes on after config.rl.rollout.token_cap; "
        "set that to 0"
    )


def _spread(groups: list[PromptGroup], more: list[PromptGroup]) -> list[PromptGroup]:
    """Both lists in their orders, one spread evenly over the other: updates take consecutive groups."""
    ranked = [((i + 0.5) / len(part), group) for part in (groups, more) for i, group in enumerate(part)]
    return [group for _, group in sorted(ranked, key=lambda pair: pair[0])]


def _sampled_tokens(groups: list[PromptGroup]) -> int:
    return sum(each.sampled_tokens for group in groups for each in group.trajectories if each is not None)


def _share_verdicts(step: int, trajectories: list[Trajectory | None]) -> None:
    """Gives every process the verdicts of the first one, under a name that is used once in a run."""
    if processes.count() == 1 or not trajectories:
        return
    name = f"verdicts/{step}/{trajectories[-1].key}"
    own = [(each.status, each.error, each.reward) for each in trajectories]
    shared = json.loads(processes.broadcast_from_first(name, json.dumps(own)))
    for trajectory, (status, error, reward) in zip(trajectories, shared, strict=True):
        trajectory.status, trajectory.error = status, error
        trajectory.reward = None if reward is None else Reward(*reward)
