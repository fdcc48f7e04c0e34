"""Sub-episodes of the loop's episodes: the policy answers in them too, and what it samples there is not trained on.

They are part of the environment of the episode that starts them, as the frozen sub-agents of K2.5 (section 3). The
engine runs them in lockstep with all others.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools

from k2jax import processes
from k2jax.agents.episode import run_episode, started_seed
from k2jax.agents.errors import SubEpisodeError
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.wiring import EnvironmentMaker
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.text.chat import ChatFormat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class EpisodeParts:
    """What all episodes of a run share.

    Attributes:
        client: over the engine.
        chat: format of conversations.
        tokenizer: its vocabulary.
        environments: makes one for each episode.
        scorer: verifiers.
        media: reads the images of messages; None for a model of text alone.
    """

    client: LockstepClient
    chat: ChatFormat
    tokenizer: Tokenizer
    environments: EnvironmentMaker
    scorer: Scorer
    media: MediaReader | None = None


class SubEpisodes:
    """Starts the sub-episodes of one episode.

    Args:
        parts: what they share with all others.
        key: (step, prompt, sample) of the loop's episode; its sub-episodes, and theirs, have the same.
        seed: of the episode that starts them.
        kind: class of its task.
        sampling: how the messages of a class of tasks are sampled.
    """

    def __init__(
        self,
        parts: EpisodeParts,
        key: tuple[int, int, int],
        seed: int,
        *,
        kind: str,
        sampling: Callable[[str], Sampling],
    ):
        self._parts, self._key, self._seed = parts, key, seed
        self._kind, self._sampling = kind, sampling
        self._numbers = itertools.count()

    async def start(self, task: Task, kind: str = "") -> Trajectory:
        """Runs a task to its end; see ``Rollout.spawn``.

        Raises:
            SubEpisodeError: the infrastructure failed it again and again.
            UserError: a task with a verifier in a run of several processes, of which only the first has verdicts.
        """
        number = next(self._numbers)  # now, so that those that are started together are numbered in their order
        if task.verifier and processes.count() > 1:
            raise UserError(
                f"the sub-episode {task.id!r} has a verifier, and only the first of {processes.count()} processes asks "
                "verifiers; leave its verifier out"
            )
        (trajectory,) = await self._parts.client.gather(self._run(task, kind or self._kind, number))
        if trajectory.status == "masked":
            raise SubEpisodeError(trajectory.error)
        return trajectory

    async def _run(self, task: Task, kind: str, number: int) -> Trajectory:
        parts, seed = self._parts, started_seed(self._seed, self._key, number)
        deeper = SubEpisodes(parts, self._key, seed, kind=kind, sampling=self._sampling)
        trajectory = await run_episode(
            task,
            parts.client,
            parts.chat,
            parts.tokenizer,
            parts.environments.make(task),
            key=self._key,
            seed=seed,
            sampling=self._sampling(kind),
            start=deeper.start,
            media=parts.media,
        )
        if task.verifier and trajectory.status in ("finished", "truncated"):
            await parts.scorer.judge(task, trajectory)
        return trajectory
