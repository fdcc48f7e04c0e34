"""Rewards of episodes: by function verifiers in killable processes, or by verifiers with a fresh sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import contextlib
import dataclasses

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.errors import VerifierError
from k2jax.agents.registry import verifiers
from k2jax.agents.rewards import checked_reward
from k2jax.agents.sandbox.types import WORK, SandboxBackend
from k2jax.agents.task import Task
from k2jax.agents.verdicts import LoggedVerdict, VerdictLog, digest_of
from k2jax.agents.verifier import Verifier
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.client import ChatEndpoint
from k2jax.errors import InfrastructureError, UserError, abbreviate
from k2jax.trajectory import Reward, Trajectory


class Scorer:
    """Judges episodes, once each: a verdict is logged before it is used, and a logged one is not asked for again.

    Attributes:
        log: of verdicts, or None.
        replayed: verdicts that came from the log.
    """

    def __init__(
        self,
        pool: VerifierPool,
        log: VerdictLog | None = None,
        backend: SandboxBackend | None = None,
        model: Callable[[], ChatEndpoint] | None = None,
    ):
        """Scores by some verifiers.

        Args:
            pool: of function verifiers.
            log: of verdicts; None where nothing resumes.
            backend: for verifiers that need a sandbox.
            model: opens the endpoint of verifiers that ask a model.
        """
        self._pool, self.log, self._backend, self._model = pool, log, backend, model
        self.replayed = 0

    async def judge(self, task: Task, trajectory: Trajectory) -> None:
        """Sets the reward of an episode that has ended, or masks it where the infrastructure gave none."""
        try:
            trajectory.reward = await self.score(task, trajectory)
        except InfrastructureError as error:
            trajectory.status, trajectory.error = "masked", f"{type(error).__name__}: {error}"

    async def score(self, task: Task, trajectory: Trajectory) -> Reward:
        """The reward of an episode that has ended, from the log where that holds the verdict on the same messages.

        Raises:
            VerifierError: no verdict after all tries, now or when it was logged.
            UserError: the verifier is unknown, or needs a sandbox that is not there.
            ValueError: the episode is unfinished or masked.
        """
        if trajectory.status not in ("finished", "truncated"):
            raise ValueError(f"an episode that is {trajectory.status} has no reward")
        if trajectory.status == "truncated" and not task.judge_truncated:
            return Reward(0.0, info={"cut": True})
        digest, key = digest_of(task, trajectory), EpisodeKey.of(trajectory)
        known = self.log.get(key) if self.log is not None else None
        if known is not None and known.digest == digest:
            self.replayed += 1
            verdict = known
        else:
            verdict = await self._verdict(task, trajectory, digest)
            if self.log is not None:
                self.log.append(key, verdict)
        if verdict.reward is None:
            raise VerifierError(verdict.error)
        return verdict.reward

    async def _verdict(self, task: Task, trajectory: Trajectory, digest: str) -> LoggedVerdict:
        try:
            if (judges := await self._pool.judges(task.verifier)) == "answer":
                return LoggedVerdict(digest, await self._pool.score(task, trajectory))
            if judges == "episode in a sandbox" and self._backend is None:
                raise UserError(f"the verifier {task.verifier!r} needs a sandbox; set rl.scoring.sandbox")
            verifier = verifiers.get(task.verifier)()
            return LoggedVerdict(digest, await self._pool.submit(self._on_episode, verifier, task, trajectory))
        except InfrastructureError as error:
            return LoggedVerdict(digest, None, str(error))

    def _on_episode(self, verifier: Verifier, task: Task, trajectory: Trajectory) -> Reward:
        """The verdict on an episode. Its own event loop keeps time limits where the caller's is busy."""
        reason = ""
        for _ in range(1 + self._pool.retries):
            try:
                return Reward(**checked_reward(asyncio.run(self._try(verifier, task, trajectory))))
            except UserError:
                raise
            except Exception as error:  # as in a process of a function verifier: it must not end the run
                reason = f"{type(error).__name__}: {abbreviate(str(error), 300)}"
        raise VerifierError(f"no verdict on the task {task.id!r} after {1 + self._pool.retries} tries: {reason}")

    async def _try(self, verifier: Verifier, task: Task, trajectory: Trajectory) -> Reward:
        if verifier.asks_model and self._model is None:
            raise UserError(
                f"the verifier {task.verifier!r} asks a model; set rl.critic.judge to endpoint, rl.critic.url and "
                "rl.critic.model"
            )
        async with contextlib.AsyncExitStack() as opened:
            if verifier.asks_model:
                verifier.model = await opened.enter_async_context(self._model())
            if verifier.spec is None:
                return await verifier.score(task, trajectory, None)
            limits = task.limits.of(verifier.spec.limits)
            spec = dataclasses.replace(verifier.spec, image=task.image, limits=limits, workdir=WORK)
            sandbox = await opened.enter_async_context(await self._backend.open(spec))
            return await verifier.score(task, trajectory, sandbox)
