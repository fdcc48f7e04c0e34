"""Episodes that wait for nothing but their own engine and tools, in this process or in workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import dataclasses
from typing import Protocol

from k2jax.agents.collect.episodes import JudgedEpisodes
from k2jax.agents.collect.lease_table import ATTEMPTS
from k2jax.agents.collect.queue_file import Choices, OrderedEpisode, WrittenTask
from k2jax.agents.collect.worker import Waits
from k2jax.agents.mixture import CRITIC
from k2jax.agents.spawning import Run, Spawner, SubEpisode
from k2jax.errors import InfrastructureError
from k2jax.rl.episodes import Episodes, Judge, message_sampling
from k2jax.rl.groups import PromptGroup
from k2jax.rl.workers.tracing import IterationTrace
from k2jax.trajectory import Trajectory


class Pool(Protocol):
    """Runs episodes somewhere."""

    async def run(self, episode: OrderedEpisode) -> tuple[Trajectory, Waits]:
        """Waits for the end and the verdict of an episode.

        Raises:
            UserError: a mistake in its task.
        """
        ...


class LocalPool:
    """Runs episodes on the event loop of this process.

    Args:
        episodes: runs one.
    """

    def __init__(self, episodes: JudgedEpisodes):
        self._episodes = episodes

    async def run(self, episode: OrderedEpisode) -> tuple[Trajectory, Waits]:
        """See ``Pool``."""
        task, key, names = episode.written.task, episode.key, self._episodes.roles.names
        for _ in range(ATTEMPTS):
            try:
                spawner = Spawner(self._sub_episodes(episode), episode.written.kind, roles=names)
                return await self._run(episode, episode.written, spawner)
            except InfrastructureError as error:
                masked = {"status": "masked", "error": f"{type(error).__name__}: {error}"}
        return Trajectory(task.id, task.domain, key.place, purpose=key.purpose, **masked), Waits()

    def _sub_episodes(self, episode: OrderedEpisode) -> Run:
        async def run(spawned: SubEpisode) -> Trajectory:
            written = WrittenTask(spawned.kind, spawned.task, spawned.path, episode.written.choices, spawned.role)
            trajectory, _ = await self._run(episode, written, spawned.spawner)
            return trajectory

        return run

    async def _run(self, episode: OrderedEpisode, written: WrittenTask, spawner: Spawner) -> tuple[Trajectory, Waits]:
        return await self._episodes.run((0, 0, episode.key.sample), written, written.sampling, None, spawner)


class WorkerEpisodes(Episodes):
    """Episodes of groups, each on its own; ``run`` waits for those of evaluations and of methods.

    Args:
        pool: runs them.
        trace: of one iteration.
        arguments: see ``Episodes``.
    """

    def __init__(self, pool: Pool, trace: IterationTrace, *arguments, **options):
        super().__init__(*arguments, **options)
        self._pool, self._trace = pool, trace

    async def run(
        self,
        step: int,
        groups: Sequence[PromptGroup],
        *,
        token_cap: int = 0,
        greedy: int = 0,
        judge: Judge | None = None,
    ) -> None:
        """See ``Episodes``; responses are never cut into several iterations, and verdicts come with them."""
        rollout = self.config.rl.rollout
        at_a_time = asyncio.Semaphore(rollout.concurrency or rollout.prompts * rollout.samples)

        async def respond(group: PromptGroup, sample: int) -> None:
            async with at_a_time:
                group.trajectories[sample], _ = await self.episode(step, group, sample, greedy=sample < greedy)

        await self.client.gather(
            *(respond(group, sample) for group in groups for sample in range(len(group.trajectories)))
        )
        if judge is not None:
            await judge(groups)

    async def episode(
        self, step: int, group: PromptGroup, sample: int, *, greedy: bool = False
    ) -> tuple[Trajectory, Waits]:
        """A response to a prompt, with its verdict, and what it waited for.

        Args:
            step: iteration from 1, which decides the temperature.
            group: of the prompt.
            sample: number of the response.
            greedy: take the most likely tokens.
        """
        key = group.episode(sample)
        kinds = [*self.config.rl.tasks, CRITIC]
        sampling = {
            kind: dataclasses.asdict(message_sampling(self.config, kind, group.purpose, step, greedy)) for kind in kinds
        }
        learns_below = self.config.rl.parl.joint != "off"
        choices = Choices(key.purpose, key.step, key.prompt, sampling, self.is_verified(group), learns_below)
        with self._trace.episode(key) as shown:
            trajectory, waits = await self._pool.run(OrderedEpisode(key, WrittenTask(*group.prompt, choices=choices)))
            shown |= {"status": trajectory.status, "tokens": trajectory.sampled_tokens, **waits._asdict()}
        return trajectory, waits
