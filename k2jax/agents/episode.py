"""A running episode: calls of the model and observations become nodes of a token tree, within a budget.

What the model sampled is kept as ids and never encoded again. An episode that pauses, or whose process died, goes on
from its trajectory with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
from typing import Any

import numpy as np

from k2jax.agents.environment import Environment, Message
from k2jax.agents.episode_key import EpisodeKey, environment_seed, turn_seed
from k2jax.agents.errors import EpisodePausedError, EpisodeTruncatedError
from k2jax.agents.messages import read_message
from k2jax.agents.paths import path_media
from k2jax.agents.registry import scaffolds
from k2jax.agents.spawning import Spawner
from k2jax.agents.task import Task
from k2jax.agents.toolsets.image_results import readable
from k2jax.client import Client, Completion, PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError, UserError
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.media_reading import MediaReader, start_reading
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.answers import COPIES, is_answer
from k2jax.trajectory.steps import NO_CALL, add_spawned, steps_record, turns_so_far, used_up_limit
from k2jax.trajectory.types import ROOT

NO_EXPERTS = -1
"""Routes of a token that was sampled last: it was not fed to the model."""
ATTEMPTS = 3
"""How often an episode is rebuilt in its environment before it is masked."""
_UNLIMITED = 1 << 62


class Rollout:
    """One episode of a task with a model.

    Attributes:
        task: what is asked.
        key: which episode of the run it is.
        trajectory: what has happened so far.
        tools: declarations in OpenAI's format, with which the conversation begins.
        client: the model.
        chat: format of its conversations.
        tokenizer: its vocabulary.
        media: reads the images of messages; None for a model of text alone.
    """

    def __init__(
        self,
        task: Task,
        client: Client,
        chat: ChatFormat,
        tokenizer: Tokenizer,
        key: EpisodeKey,
        *,
        spawner: Spawner | None = None,
        media: MediaReader | None = None,
    ):
        """Begins an episode; ``spawner`` runs sub-episodes, or is None."""
        self._spawner = spawner
        self.media = media
        self.task = task
        self.key = key
        self.trajectory = Trajectory(task.id, task.domain, key.place, purpose=key.purpose)
        self.client, self.chat, self.tokenizer = client, chat, tokenizer
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._token_limit = _UNLIMITED

    def begin(self) -> None:
        """Begins an attempt: a rebuilt environment spawns its sub-episodes again, in the same order."""
        if self._spawner is not None:
            self._spawner.begin()

    def resume(self, trajectory: Trajectory) -> None:
        """Goes on with an unfinished episode of the same task.

        Raises:
            ValueError: it is another task's, or it has ended.
        """
        if trajectory.task != self.task.id or trajectory.status != "unfinished":
            raise ValueError(f"a {trajectory.status} trajectory of the task {trajectory.task!r} cannot go on")
        self.trajectory = trajectory
        if self._spawner is not None:
            self._spawner.resume(trajectory.spawned)

    @property
    def may_pause(self) -> bool:
        """Whether the episode may have to stop in its midst and go on later."""
        return self._token_limit != _UNLIMITED

    def pause_after(self, tokens: int) -> None:
        """Lets the episode grow by so many sampled tokens from here on."""
        self._token_limit = self.trajectory.sampled_tokens + tokens

    async def spawn(self, task: Task, kind: str = "", role: str = "", *, call: int = NO_CALL, **end: Any) -> Trajectory:
        """Runs another task as a sub-episode, with random numbers of its own.

        Several may run at a time. They end with this episode, and cancelling the coroutine cancels the sub-episode. The
        trajectory keeps each in ``spawned``, and its metadata under ``SPAWNED`` what became of it.

        Args:
            task: what is asked; it may spawn others.
            kind: class of the task, which decides how it is sampled; this episode's by default.
            role: who answers; as in this episode by default. Of another role than the policy see ``RoleClient``.
            call: number of the call of a tool, within its answer, that spawns it.
            end: ``may_fail`` and ``seconds``, see ``Spawner.spawn``.

        Returns:
            Its trajectory, finished or truncated, with a reward where the task has a verifier.

        Raises:
            InfrastructureError: it was masked, and may not be.
            UserError: whoever runs this episode runs no sub-episodes, or none of this role.
        """
        if self._spawner is None:
            raise UserError(f"the task {self.task.id!r} starts sub-episodes, and nothing here runs them")
        turn = turns_so_far(self.trajectory)
        number, ended = await self._spawner.spawn(task, kind, role, **end)
        add_spawned(self.trajectory, number, (turn, call), ended)
        return ended

    def observe(self, node: int, messages: Sequence[Message]) -> int:
        """Adds messages that the model did not write, one node each; the last ends with the model's generation prompt.

        Args:
            node: the node that they follow; ROOT begins the conversation.
            messages: in OpenAI's format, at least one.

        Returns:
            The last of the new nodes.

        Raises:
            EpisodeTruncatedError: the images of the messages are more than the reader allows.
            UserError: an image is damaged, or the model reads none.
            ValueError: there is no message.
        """
        if not messages:
            raise ValueError("an environment that does not end the episode must show a message")
        builder, reading = self._conversation(node), start_reading(self.media)
        for index, message in enumerate([readable(message, self.media) for message in messages]):
            known = 0 if node == ROOT else len(builder.tokens)  # the first node begins with the tools
            with self._truncating():
                builder.add(reading.read(message))
            if index + 1 == len(messages):
                builder.open_assistant(self.task.thinking)
            node = self.trajectory.add(Node.observed(node, builder.tokens[known:], dict(message)))
        return node

    def copy(self, node: int, parent: int) -> int:
        """Adds what the model sampled in a node again under another parent, as context that is not trained on.

        Returns:
            The new node: an observation with the same ids.
        """
        original = self.trajectory.nodes[node]
        new = self.trajectory.add(Node.observed(parent, original.tokens, original.message))
        copies = self.trajectory.metadata.setdefault(COPIES, {})
        copies[str(new)] = copies.get(str(node), node)
        return new

    async def generate(self, node: int, sampling: Sampling) -> int:
        """Asks the model for the next message after a node, or for the rest of a node that was cut short.

        Args:
            node: an observation, or a sampled node whose finish is ``cancelled``.
            sampling: ``max_tokens`` limits this message; ``seed`` is the run's, from which each turn derives its own;
                the end of the format's messages is added to the stop tokens. A node that was cut short keeps its
                temperature.

        Returns:
            The sampled node, whose finish is ``stop`` or ``length``.

        Raises:
            EpisodePausedError: the episode has grown as much as it may for now.
            EpisodeTruncatedError: the task's budget is used up, or the conversation is as long as the client's longest
                sequence.
        """
        nodes = self.trajectory.nodes
        begun = nodes[node] if nodes[node].finish == "cancelled" else None
        parent = node if begun is None else begun.parent
        known = 0 if begun is None else len(begun.tokens)
        turn = turns_so_far(self.trajectory) if begun is None else begun.turn
        if begun is None and (used_up := used_up_limit(self.trajectory, self.task.budget)):
            raise EpisodeTruncatedError(used_up)
        longest, allowed = self._limits(sampling, known)
        prompt = self.trajectory.path_tokens(parent)
        temperature = sampling.temperature if begun is None else begun.temperature
        asked = dataclasses.replace(
            sampling,
            temperature=temperature,
            max_tokens=min(longest, allowed),
            seed=turn_seed(sampling.seed, self.key, turn),
            stop_tokens=(self.chat.end, *sampling.stop_tokens),
        )
        resume = None if begun is None else _completion(begun, self._known_experts(node))
        with self._truncating():
            media = path_media(self.trajectory, self.trajectory.path(parent), self.media)
            completion = await self.client.generate(prompt.tolist(), asked, resume=resume, media=media)
        paused = completion.finish == "cancelled" or (
            completion.finish == "length" and allowed < longest and len(completion.tokens) >= allowed
        )
        sampled = self._sampled(parent, completion, turn, temperature)
        if paused:
            sampled = dataclasses.replace(sampled, finish="cancelled")
        if begun is None:
            node = self.trajectory.add(sampled)
        else:
            nodes[node] = dataclasses.replace(sampled, experts=begun.experts)
        self._keep_experts(node, completion.experts)
        if paused:
            raise EpisodePausedError
        return node

    @contextlib.contextmanager
    def _truncating(self) -> Iterator[None]:
        """Ends the episode where what the model is shown is too long, but not where the task alone is."""
        try:
            yield
        except PromptTooLongError as error:
            if not self.trajectory.sampled_tokens:  # the task itself does not fit: a mistake, and no policy's
                raise
            raise EpisodeTruncatedError(str(error)) from error

    def _conversation(self, node: int) -> ChatBuilder:
        """The conversation up to a node, whose tokens are those of its path."""
        path = self.trajectory.path(node)
        if path and is_answer(self.trajectory, node):  # all of its tokens are known: nothing is encoded again
            parts = ((index, self.trajectory.nodes[index].message) for index in path)
            roles = ["assistant" if is_answer(self.trajectory, index) else message["role"] for index, message in parts]
            tokens = self.trajectory.path_tokens(node).tolist()
            return ChatBuilder.resume(self.chat, tokens, roles, is_open=True, tools=self.tools)
        builder, reading = ChatBuilder(self.chat, self.tools), start_reading(self.media)
        for index in path:
            part = self.trajectory.nodes[index]
            if is_answer(self.trajectory, index):
                builder.open_assistant(self.task.thinking)
                builder.append_sampled(part.tokens.tolist())
            else:
                builder.add(reading.read(part.message))
        return builder

    def _limits(self, sampling: Sampling, known: int) -> tuple[int, int]:
        """Most tokens of a message that has ``known`` already: of its budget, and of this iteration."""
        budget, spent = self.task.budget, self.trajectory.sampled_tokens - known
        longest = sampling.max_tokens if budget.tokens is None else min(sampling.max_tokens, budget.tokens - spent)
        if longest <= known:
            raise EpisodeTruncatedError(f"{budget.tokens} tokens")
        if self._token_limit - spent <= known:
            raise EpisodePausedError
        return longest, self._token_limit - spent

    def _sampled(self, parent: int, completion: Completion, turn: int, temperature: float) -> Node:
        return Node(
            parent,
            completion.tokens,
            completion.trainable,
            completion.logprobs,
            versions=completion.versions,
            turn=turn,
            temperature=temperature,
            finish=completion.finish,
            free_logprobs=completion.free_logprobs,
            message=read_message(self.chat, completion.tokens, self.task.thinking, self.trajectory.path_tokens(parent)),
        )

    def _known_experts(self, node: int) -> np.ndarray | None:
        """Routes of all tokens on a path but the last, as ``Completion.experts`` has them; None where unknown."""
        parts = [self.trajectory.nodes[index].experts for index in self.trajectory.path(node)]
        return None if any(part is None for part in parts) else np.concatenate(parts)[:-1]

    def _keep_experts(self, node: int, experts: np.ndarray | None) -> None:
        """Divides a completion's routes among the nodes of its path; a token keeps those of its own time."""
        if experts is None:
            return
        nodes, begin = self.trajectory.nodes, 0
        for index in self.trajectory.path(node):
            count = len(nodes[index].tokens)
            routes = np.full((count, *experts.shape[1:]), NO_EXPERTS, np.int16)
            part = experts[begin : begin + count]
            routes[: len(part)] = part
            old = nodes[index].experts
            if old is not None:
                routes[: len(old)] = np.where(old == NO_EXPERTS, routes[: len(old)], old)
            nodes[index] = dataclasses.replace(nodes[index], experts=routes)
            begin += count


def _completion(node: Node, experts: np.ndarray | None) -> Completion:
    return Completion(node.tokens, node.logprobs, node.versions, node.finish, experts, node.free_logprobs)


async def run_episode(
    task: Task,
    client: Client,
    chat: ChatFormat,
    tokenizer: Tokenizer,
    environment: Environment,
    *,
    key: EpisodeKey,
    seed: int,
    sampling: Sampling,
    token_cap: int = 0,
    trajectory: Trajectory | None = None,
    spawner: Spawner | None = None,
    media: MediaReader | None = None,
) -> Trajectory:
    """Runs an episode to its end, or until it has grown by ``token_cap`` tokens.

    Args:
        task: what is asked.
        client: the model.
        chat: format of its conversations.
        tokenizer: its vocabulary.
        environment: closed at the end, whatever happens.
        key: of the episode; with ``seed`` it decides all random numbers.
        seed: of the run.
        sampling: of every message; ``max_tokens`` is of one message, and ``seed`` is not read.
        token_cap: sampled tokens by which the episode may grow in this call; 0 is no cap.
        trajectory: an unfinished episode of this task and key that goes on: the environment is rebuilt by replaying
            its actions. It is changed in place.
        spawner: runs sub-episodes, see ``Rollout.spawn``, which is among the environment's services.
        media: reads the images of messages; None for a model of text alone.

    Returns:
        The trajectory: ``finished``, ``truncated`` by a budget, ``unfinished`` at the cap or where the client ended a
        request early, or ``masked`` where the infrastructure failed again and again.

    Raises:
        UserError: the task needs a scaffold or tools that are not there, or the client cannot serve it.
    """
    scaffold = scaffolds.make(task.scaffold)
    rollout = Rollout(task, client, chat, tokenizer, key, spawner=spawner, media=media)
    if trajectory is not None:
        rollout.resume(trajectory)
    environment.services = environment.services._replace(spawn=rollout.spawn, metadata=rollout.trajectory.metadata)
    if token_cap:
        rollout.pause_after(token_cap)
    rollout.trajectory.metadata.setdefault("seed", environment_seed(seed, key))
    sampling = dataclasses.replace(sampling, seed=seed)
    try:
        await _try_again(rollout, lambda: scaffold.run(rollout, environment, sampling))
    finally:
        try:
            await environment.close()
        except InfrastructureError as error:  # the episode itself is whole
            rollout.trajectory.metadata["close_error"] = f"{type(error).__name__}: {error}"
    ended = rollout.trajectory
    if ended.status != "masked":
        ended.error = ""
    ended.metadata |= steps_record(ended)
    return ended


async def _try_again(rollout: Rollout, run: Callable[[], Awaitable[None]]) -> None:
    """Runs an episode until its infrastructure does not fail, or masks it."""
    for _ in range(ATTEMPTS):
        rollout.begin()
        try:
            await run()
            return
        except InfrastructureError as error:
            rollout.trajectory.error = f"{type(error).__name__}: {error}"
    rollout.trajectory.status = "masked"
