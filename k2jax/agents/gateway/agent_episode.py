"""An episode whose agent is a program that asks a gateway: from the opening of its rollout to its trajectory.

Where the program runs, and what its work is worth, is the affair of a scaffold: ``black_box``, or ``command`` of the
package ``harness``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
import contextlib
import dataclasses
import time
from typing import Any, NamedTuple, NoReturn, TypeVar

from k2jax.agents.api import ModelCard
from k2jax.agents.episode import Rollout
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.gateway.episode_client import EpisodeClient, EpisodeMedia
from k2jax.agents.gateway.exchange import LAST_TOKEN_SECONDS
from k2jax.agents.gateway.gateway import Gateway, RolloutAccess
from k2jax.agents.gateway.session import GatewaySession
from k2jax.agents.gateway.spec import GatewayRollout
from k2jax.client import PromptTooLongError, Sampling
from k2jax.errors import UserError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.types import ROOT, Status

MODEL = "k2"
"""Name of the model, for agents; any other does as well."""
KEPT_OUTPUT = 2000
"""Characters of an agent's output in the metadata of its trajectory."""
_SHORTEST_WAIT = 0.05  # between two looks at the agent's clock [s]
_Result = TypeVar("_Result")


class AgentLimits(NamedTuple):
    """Limits of an agent's episode beside its task's budget.

    Attributes:
        seconds: that it may work without waiting for the model [s].
        wall: that the episode may last, waiting included [s].
        context: longest prompt with its answer [tokens]; the engine's own limit holds where that is lower.
        answer: that the model has for one answer [s].
        side_calls: most side calls that are answered; -1 is the gateway's default, see ``GatewayRollout``.
        train_side_calls: whether what the model samples in them is trained on, with the reward of the episode.
    """

    seconds: float
    wall: float
    context: int
    answer: float
    side_calls: int
    train_side_calls: bool

    def check(self, scaffold: str) -> None:
        """Raises UserError where a limit is out of its range."""
        if min(self.seconds, self.wall, self.answer) <= 0 or self.context < 1 or self.side_calls < -1:
            raise UserError(
                f"the scaffold of {scaffold} needs seconds, wall, answer and context above 0, side_calls from -1"
            )


class AgentEnd(NamedTuple):
    """How an agent's requests ended.

    Attributes:
        status: of the episode.
        is_idle: whether the agent took no turn of its own, but side calls alone.
        refused: why a prompt was refused; empty where none was.
    """

    status: Status
    is_idle: bool
    refused: str


class AgentEpisode:
    """A rollout of a gateway of its own, for the program that plays an episode.

    Attributes:
        client: the model, as this episode uses it.
        gateway: serves the rollout.
        access: what the program needs to reach it.
    """

    def __init__(self, rollout: Rollout, limits: AgentLimits, client: EpisodeClient, gateway: Gateway):
        """Use ``open``."""
        self._rollout, self._limits = rollout, limits
        self.client, self.gateway = client, gateway
        self.access: RolloutAccess

    @classmethod
    async def open(
        cls, rollout: Rollout, sampling: Sampling, limits: AgentLimits, *, name: str, declares_tools: bool
    ) -> AgentEpisode:
        """Opens the rollout of an episode.

        Args:
            rollout: the episode.
            sampling: of every answer.
            limits: see ``AgentLimits``.
            name: of the rollout, in its URL.
            declares_tools: see ``GatewayRollout``.

        Raises:
            UserError: the run asks for what no agent with a program of its own can do.
        """
        if rollout.may_pause:
            raise UserError("a black-box agent cannot pause in its midst; set config.rl.rollout.token_cap to 0")
        if not rollout.task.thinking:
            raise UserError(
                "a black-box agent asks for reasoning or not in its own requests; leave config.rl.tasks.*.thinking true"
            )
        client = EpisodeClient(rollout.client)
        media = rollout.media and EpisodeMedia(rollout.media, client)
        vocab, longest = rollout.tokenizer.vocab_size, await client.longest_sequence()
        context = limits.context if longest is None else min(limits.context, longest)
        card = ModelCard(MODEL, rollout.tokenizer, vocab, context, chat=rollout.chat, media=media)
        opened = cls(rollout, limits, client, Gateway(client, card, answer_seconds=limits.answer))
        opened.access = opened.gateway.open(opened._described(sampling, declares_tools), name)
        return opened

    def sizes(self) -> dict[str, str]:
        """What an agent plans with: the longest prompt with its answer, and the longest answer [tokens]."""
        context, asked = self.gateway.card.max_length, self._session.spec.sampling.max_tokens
        return {"context": str(context), "max_tokens": str(max(1, min(asked, context - 1)))}

    async def watch(self, running: Coroutine[Any, Any, _Result]) -> _Result | str:
        """Waits until the program ends, and cancels it where its own time or the wall time is over.

        Returns:
            What the coroutine returns, or which time was over.

        Raises:
            RuntimeError: the model failed.
            InfrastructureError: the model or the program failed.
        """
        began, client = time.monotonic(), self.client
        waited, task = client.waited, asyncio.ensure_future(running)
        try:
            while not task.done():
                elapsed = time.monotonic() - began
                left = {"time": self._limits.seconds - (elapsed - (client.waited - waited)),
                        "wall time": self._limits.wall - elapsed}  # fmt: skip
                for name, seconds in left.items():
                    if seconds <= 0:
                        return name
                pause = max(_SHORTEST_WAIT, min(left.values()))
                await asyncio.wait({task, client.failed}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if client.failed.done():
                    client.failed.result()
            return task.result()
        finally:
            task.cancel()
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:  # of this coroutine, not of the task, whose end comes first
                await asyncio.wait([task])
                raise
            if not task.cancelled():
                task.exception()  # has been seen

    async def end(self, agent: str, *, is_cut: bool, said: object) -> AgentEnd:
        """Ends the rollout, and makes the episode's trajectory of what it recorded.

        Args:
            agent: the program, for messages.
            is_cut: whether the program was ended before its own end.
            said: what it has written last, for messages.

        Raises:
            EnvironmentFailedError: the program has asked nothing, or was given no answer.
            UserError: its first request does not fit.
        """
        session, gateway = self._session, self.gateway
        refused = self.client.refused or session.refused
        if not session.requests:
            if session.in_progress and not refused:
                gateway.cancel_all()
            _raise_without_answers(agent, refused, bool(session.in_progress), said)
        over = any(request.get("over_budget") for request in session.requests)
        is_idle = not any(request["tokens"] for request in session.requests if request["history"] == 0)
        status: Status = "truncated" if is_cut or over or is_idle or refused else "finished"
        _fill(self._rollout.trajectory, await self._closed(status), status)
        return AgentEnd(status, is_idle, refused)

    async def close(self) -> None:
        """Ends what the program has asked for and not got, where the episode fails: another attempt may begin."""
        session = self._session
        if not session.has_ended:
            session.is_closed = True
            self.gateway.cancel_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TOKEN_SECONDS):
                    await session.wait_until_idle()

    @property
    def _session(self) -> GatewaySession:
        return self.gateway.session(self.access.rollout)

    async def _closed(self, status: Status) -> list[Trajectory]:
        """Ends the rollout; an answer that does not even come to its next token is not recorded."""
        try:
            async with asyncio.timeout(LAST_TOKEN_SECONDS):
                return await self.gateway.close(self.access.rollout, status)
        except TimeoutError:
            self.gateway.cancel_all()
            return await self.gateway.close(self.access.rollout, status)

    def _described(self, sampling: Sampling, declares_tools: bool) -> GatewayRollout:
        task, key, limits = self._rollout.task, self._rollout.key, self._limits
        return GatewayRollout(
            task=task.id,
            domain=task.domain,
            key=key.place,
            purpose=key.purpose,
            sampling=sampling,
            budget=task.budget,
            declares_tools=declares_tools,
            train_side_calls=limits.train_side_calls,
            side_calls=None if limits.side_calls < 0 else limits.side_calls,
        )


def _raise_without_answers(agent: str, refused: str, is_asking: bool, said: object) -> NoReturn:
    if refused:  # the task itself does not fit: no policy's mistake
        raise PromptTooLongError(f"the first request of {agent} is refused: {refused}")
    if is_asking:
        raise EnvironmentFailedError(f"the model has given {agent} no answer in its time")
    raise EnvironmentFailedError(f"{agent} asked its model nothing: {said!a}")


def _fill(trajectory: Trajectory, recorded: Sequence[Trajectory], status: Status) -> None:
    """Makes an episode of what a gateway recorded: side calls are trees of their own beside the agent's history.

    The nodes of the main trajectory, the first of ``recorded``, come last: its last answer is the episode's.
    """
    main, *sides = recorded
    requests: list[dict[str, Any]] = []
    trajectory.nodes, trajectory.status = [], status
    for part in (*sides, main):
        first = len(trajectory.nodes)
        for node in part.nodes:
            parent = node.parent if node.parent == ROOT else node.parent + first
            trajectory.nodes.append(dataclasses.replace(node, parent=parent))
        for request in part.metadata["requests"]:
            requests.append(request | ({"node": request["node"] + first} if "node" in request else {}))
    requests.sort(key=lambda request: request["began"])
    trajectory.metadata |= {"requests": requests, "counts": main.metadata["counts"]}
