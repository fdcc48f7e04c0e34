"""Sub-episodes: what a running episode spawns runs as an episode of its own, with random numbers of its own.

They are part of the environment of the episode that spawns them, as the frozen sub-agents of Kimi K2.5 (section 3):
what is sampled there is not trained on. Who answers in them is the policy, or another role, see ``roles``. An episode
that is rebuilt spawns the same ones again, in the same order, and those that have ended are not run twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from k2jax.agents.errors import SubEpisodeError
from k2jax.agents.roles import check_role
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError
from k2jax.errors import InfrastructureError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import AGENT, POLICY, ROLE


class SubEpisode(NamedTuple):
    """A sub-episode that is to be run.

    Attributes:
        task: what is asked.
        kind: class of the task, which decides how it is sampled.
        path: numbers of the sub-episodes from the run's own episode down to this one; with the key of that episode it
            decides what is random in it, see ``spawned_seed``.
        spawner: spawns its own sub-episodes.
        role: who answers.
    """

    task: Task
    kind: str
    path: tuple[int, ...]
    spawner: Spawner
    role: str


Run = Callable[[SubEpisode], Awaitable[Trajectory]]
"""Runs a sub-episode to its end: in this process, or on another worker."""
_MOST = 1 << 20  # sub-episodes of an episode


class Spawner:
    """Spawns the sub-episodes of one episode.

    Args:
        run: runs one of them.
        kind: class of its task.
        path: of the episode, see ``SubEpisode``; empty for the run's own episode.
        role: who answers in the episode.
        roles: all that ``run`` has.
    """

    def __init__(
        self,
        run: Run,
        kind: str = "",
        path: tuple[int, ...] = (),
        role: str = POLICY,
        roles: tuple[str, ...] = (POLICY,),
    ):
        self._run, self._kind, self.path, self._role, self._roles = run, kind, path, role, roles
        self._place = self._attempt = 0
        self._ended: dict[int, Trajectory] = {}  # by place

    def begin(self) -> None:
        """Begins an attempt of the episode: its sub-episodes are counted from 0 again."""
        self._place, self._attempt = 0, self._attempt + 1

    def resume(self, ended: Mapping[int, Trajectory]) -> None:
        """Goes on with an episode of which some sub-episodes have ended, by their numbers in it."""
        self._ended = dict(ended)

    async def spawn(
        self, task: Task, kind: str = "", role: str = "", *, may_fail: bool = False, seconds: float = 0.0
    ) -> tuple[int, Trajectory]:
        """Runs a task to its end; cancelling the coroutine cancels the sub-episode.

        Args:
            task: what is asked; it may spawn others.
            kind: class of the task; that of the spawning episode by default.
            role: who answers; whoever answers in the spawning episode by default.
            may_fail: whether a masked sub-episode is an outcome, which a rebuilt episode has again, and no failure.
            seconds: after which one that has not ended is cancelled and masked; 0 is no limit [s].

        Returns:
            The number of the sub-episode in its episode, and its trajectory, finished or truncated.

        Raises:
            SubEpisodeError: it was masked, and may not be.
            UserError: nothing here answers as the role.
        """
        kind, role = kind or self._kind, role or self._role
        check_role(role, self._roles)
        place, self._place = self._place, self._place + 1
        if place not in self._ended:
            # One that failed is another one in the next attempt; nobody else has its number, whoever goes on.
            path = (*self.path, place + _MOST * max(0, self._attempt - 1))
            spawner = Spawner(self._run, kind, path, role, self._roles)
            trajectory = await _ended(self._run, SubEpisode(task, kind, path, spawner, role), seconds)
            if trajectory.status == "masked" and not may_fail:
                raise SubEpisodeError(trajectory.error)
            self._ended[place] = trajectory
        return place, self._ended[place]


async def _ended(run: Run, spawned: SubEpisode, seconds: float) -> Trajectory:
    """The trajectory of a sub-episode; where it has none, an empty one that is masked."""
    task = spawned.task
    try:
        async with asyncio.timeout(seconds or None):
            ended = await run(spawned)
    except (InfrastructureError, PromptTooLongError, TimeoutError) as error:
        ended = Trajectory(task.id, task.domain, (0, 0, 0), status="masked", error=f"{type(error).__name__}: {error}")
    ended.metadata |= {ROLE: spawned.role} | {key: task.metadata[key] for key in (AGENT,) if key in task.metadata}
    return ended
