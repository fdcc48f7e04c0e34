"""The episodes of groups by a client in lockstep: sampled, and scored while others are still generated.

Engine and coroutines run in lockstep, so that a run that is killed and resumed samples the same tokens with the same
rounding. Verdicts do not influence generation: they are awaited outside of the lockstep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
import dataclasses
from typing import Any, NoReturn

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey, spawned_seed
from k2jax.agents.mixture import class_config
from k2jax.agents.roles import RoleClient, Roles
from k2jax.agents.scaffolds.prompt_lengths import too_long
from k2jax.agents.scorer import Scorer
from k2jax.agents.spawning import Run, Spawner, SubEpisode
from k2jax.agents.task import Task
from k2jax.client import Client, PromptTooLongError, Sampling
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.rl.groups import PromptGroup, class_of
from k2jax.rl.schedules import sampling_temperature
from k2jax.text.chat import ChatFormat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import POLICY, ROLE
from k2jax.trajectory.types import Purpose

Judge = Callable[[Sequence[PromptGroup]], Awaitable[None]]
"""Gives responses rewards that no verifier gives, where groups are complete."""


class Episodes:
    """Samples and scores responses.

    Args:
        config: the experiment.
        client: over the engine.
        chat: format of conversations.
        tokenizer: its vocabulary.
        scorer: verifiers.
        media: reads the images of messages; None for a model of text alone.
        roles: who answers besides the policy, by the names of ``config.rl.roles``; they read text alone.

    Attributes:
        roles: these and the policy.
    """

    def __init__(
        self,
        config: Config,
        client: LockstepClient,
        chat: ChatFormat,
        tokenizer: Tokenizer,
        scorer: Scorer,
        *,
        media: MediaReader | None = None,
        roles: Mapping[str, RoleClient] | None = None,
    ):
        self.config, self.client, self.scorer, self._media = config, client, scorer, media
        self.roles = Roles({POLICY: RoleClient(client, chat, tokenizer), **(roles or {})})
        rl = config.rl
        self._environments = EnvironmentMaker(rl.rollout.sandbox, images=rl.images, repositories=None, hosts=rl.hosts)

    async def run(
        self,
        step: int,
        groups: Sequence[PromptGroup],
        *,
        token_cap: int = 0,
        greedy: int = 0,
        judge: Judge | None = None,
    ) -> None:
        """Samples and scores every response of some groups of one purpose that is not done.

        Args:
            step: iteration from 1, which decides the temperature of responses that begin.
            groups: their trajectories are replaced.
            token_cap: tokens that a response may grow by; 0 is no cap.
            greedy: number of samples of each group, from the first, that take the most likely tokens.
            judge: called with the complete groups when all responses are generated.
        """
        scoring: list[asyncio.Task] = []

        async def respond(group: PromptGroup, sample: int) -> None:
            trajectory = await self._episode(step, group, sample, token_cap, greedy=sample < greedy)
            group.trajectories[sample] = trajectory
            if trajectory.status in ("finished", "truncated") and self.is_verified(group):
                scoring.append(asyncio.create_task(self.scorer.judge(group.prompt.task, trajectory)))

        unfinished = [
            (group, sample)
            for group in groups
            for sample, trajectory in enumerate(group.trajectories)
            if trajectory is None or trajectory.status == "unfinished"
        ]
        at_a_time = self.config.rl.rollout.concurrency or max(1, len(unfinished))
        for first in range(0, len(unfinished), at_a_time):
            await self.client.gather(*(respond(*each) for each in unfinished[first : first + at_a_time]))
        complete = [group for group in groups if group.complete]
        if judge is not None:
            await judge(complete)
        await asyncio.gather(*scoring)

    async def _episode(self, step: int, group: PromptGroup, sample: int, token_cap: int, *, greedy: bool) -> Trajectory:
        task, key, seed = group.prompt.task, group.episode(sample), self.config.train.seed
        sampling = lambda kind: message_sampling(self.config, kind, group.purpose, step, greedy)  # noqa: E731
        # One that an episode waits for is not cut at the cap, and an episode that goes on has those that have ended.
        spawner = Spawner(self.sub_episodes(key, seed, sampling), group.prompt.kind, roles=self.roles.names)
        partial = {"token_cap": token_cap, "trajectory": group.trajectories[sample]}
        options = {"key": key, "seed": seed, "sampling": sampling(group.prompt.kind), "spawner": spawner}
        try:
            return await self._run(task, **options, **partial)
        except PromptTooLongError as error:  # by what the environment has added to the instruction
            if self.config.rl.rollout.long_prompts == "refuse":
                raise UserError(too_long(group.prompt.kind, task, str(error), self.config)) from error
            masked = {"status": "masked", "error": f"PromptTooLongError: {error}"}
            return Trajectory(task.id, task.domain, key.place, purpose=key.purpose, **masked)

    async def _run(self, task: Task, role: str = POLICY, *, token_cap: int = 0, **options: Any) -> Trajectory:
        asked, environment = self.roles.client_of(role), self._environments.make(task)
        client_of = self._unasked_client_of if token_cap else self.roles.client_of
        environment.services = environment.services._replace(client_of=client_of)
        options |= {"token_cap": token_cap, "media": self._media if role == POLICY else None}
        return await run_episode(task, asked.client, asked.chat, asked.tokenizer, environment, **options)

    def _unasked_client_of(self, role: str) -> RoleClient:
        """The client of a role where an episode that goes on is rebuilt: it may name a role, but not ask it.

        Sub-episodes are kept with the episode; what a client says to an environment is not, and may be something else.
        """
        return self.roles.client_of(role)._replace(client=_UnaskedClient(role))

    def sub_episodes(self, key: EpisodeKey, seed: int, sampling: Callable[[str], Sampling]) -> Run:
        """What runs the sub-episodes of one episode, in lockstep with all others.

        Args:
            key: of the episode.
            seed: of the run.
            sampling: how the policy's messages of a class of tasks are sampled.
        """

        async def run(spawned: SubEpisode) -> Trajectory:
            options = {"key": key, "seed": spawned_seed(seed, key, spawned.path), "spawner": spawned.spawner}
            asked = self.roles.client_of(spawned.role).sampling or sampling(spawned.kind)
            if self.config.rl.parl.joint == "off":  # experts are recorded for training alone
                asked = dataclasses.replace(asked, return_experts=False)
            options["sampling"] = asked
            trajectory = await self._run(spawned.task, spawned.role, **options)
            trajectory.metadata[ROLE] = spawned.role
            if spawned.task.verifier and trajectory.status in ("finished", "truncated"):
                await self.scorer.judge(spawned.task, trajectory)
            return trajectory

        async def in_lockstep(spawned: SubEpisode) -> Trajectory:
            (trajectory,) = await self.client.gather(run(spawned))
            return trajectory

        return in_lockstep

    def is_verified(self, group: PromptGroup) -> bool:
        """Whether a verifier judges a group: other rewards are for training, and evaluations ask for the truth."""
        if group.purpose == "train" and not class_of(self.config.rl, group).is_verified:
            return False
        return bool(group.prompt.task.verifier)


def message_sampling(config: Config, kind: str, purpose: Purpose, step: int, greedy: bool = False) -> Sampling:
    """How the messages of a class of tasks are sampled.

    Args:
        config: the experiment.
        kind: the class.
        purpose: ``eval`` for an evaluation, which has its own temperature, top-p and top-k.
        step: iteration from 1.
        greedy: take the most likely tokens.
    """
    rl, class_of_tasks, evaluation = config.rl, class_config(config.rl, kind), purpose == "eval"
    if greedy:
        drawn = {"temperature": 0.0}
    elif evaluation:
        drawn = {"temperature": rl.eval_temperature, "top_p": rl.eval_top_p, "top_k": rl.eval_top_k}
    else:
        decayed = sampling_temperature(class_of_tasks, step - 1, config.train.steps)
        drawn = {"temperature": decayed, "top_p": class_of_tasks.top_p, "top_k": class_of_tasks.top_k}
    experts = not evaluation and rl.rollout.routing != "own"
    return Sampling(max_tokens=class_of_tasks.max_tokens, **drawn, return_experts=experts)


class _UnaskedClient(Client):
    """Refuses the requests of an environment; see ``Episodes._unasked_client_of``."""

    def __init__(self, role: str):
        self._role = role

    async def generate(self, *request: Any, **options: Any) -> NoReturn:
        raise UserError(
            f"an environment asks the role {self._role!r}, and config.rl.rollout.token_cap rebuilds environments of "
            "episodes that go on; set that to 0"
        )
