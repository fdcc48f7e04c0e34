"""Who answers the tasks of a suite: a model by token ids, a chat endpoint by text, likelihoods, or a program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
import dataclasses
import hashlib
import json
from typing import Any, NamedTuple, Protocol

import numpy as np

from k2jax.agents.environment import OUTCOME, EnvironmentMaker, Step
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey, environment_seed, turn_seed
from k2jax.agents.scaffolds.scripted import MOST_STEPS, Policy, acted, play
from k2jax.agents.task import Task
from k2jax.client import ChatEndpoint, Client, PromptTooLongError, Sampling
from k2jax.client.text_apis import NATIVE
from k2jax.errors import InfrastructureError, UserError
from k2jax.evaluate.suite import Suite
from k2jax.tasks.multiple_choice.dataset import ANSWER, CONTINUATIONS
from k2jax.tasks.multiple_choice.forms import LETTERS
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Node, Reward, Trajectory
from k2jax.trajectory.types import NO_TURN, ROOT

_MESSAGE = ("role", "content", "tool_calls", NATIVE)
"""What is kept of a server's message."""


class Given(NamedTuple):
    """An answer before it is judged.

    Attributes:
        trajectory: its episode, with a reward where no verifier is to be asked.
        prompt_tokens: that the model read, of all its calls; 0 where that is not known.
        tokens: that it wrote.
        likelihood: mean log-probability of those tokens [nats]; None where that is not known.
    """

    trajectory: Trajectory
    prompt_tokens: int
    tokens: int
    likelihood: float | None = None


class Answerer(Protocol):
    """Answers tasks; several at a time."""

    async def answer(self, task: Task, place: int, sample: int) -> Given:
        """An answer.

        Args:
            task: what is asked.
            place: of the task in its suite; with ``sample`` it decides the random numbers.
            sample: number of the answer among those to this task.

        Raises:
            PromptTooLongError: the task is longer than the model or the suite's context holds.
            InfrastructureError: a machine failed.
            UserError: the model cannot be asked this at all.
        """
        ...


class TokenAnswerer:
    """Episodes of a model that takes and gives token ids: an engine, or a server that knows ``return_token_ids``.

    Args:
        suite: how answers are sampled.
        client: the model.
        chat: format of its conversations.
        tokenizer: its vocabulary.
        environments: makes the surroundings of episodes.
    """

    def __init__(
        self, suite: Suite, client: Client, chat: ChatFormat, tokenizer: Tokenizer, environments: EnvironmentMaker
    ):
        self._suite, self._environments = suite, environments
        self._client, self._chat, self._tokenizer = client, chat, tokenizer

    async def answer(self, task: Task, place: int, sample: int) -> Given:
        """See ``Answerer.answer``."""
        suite = self._suite
        room = suite.context - suite.max_tokens
        if suite.context and suite.overflow == "truncate":
            task = cut_in_the_middle(task, room, self._chat, self._tokenizer)
        elif suite.context and (length := len(prompt_ids(task, self._chat))) > room:
            raise PromptTooLongError(
                f"its prompt of {length:,} tokens leaves no room in a context of {suite.context:,}"
            )
        names = ("max_tokens", "temperature", "top_p", "top_k")
        trajectory = await run_episode(
            task,
            self._client,
            self._chat,
            self._tokenizer,
            self._environments.make(task),
            key=EpisodeKey("eval", 0, place, sample),
            seed=suite.seed,
            sampling=Sampling(**{name: getattr(suite, name) for name in names}),
        )
        sampled = [node for node in trajectory.nodes if node.turn != NO_TURN]
        read = sum(len(trajectory.path_tokens(node.parent)) for node in sampled)
        logprobs = np.concatenate([node.logprobs for node in sampled]) if sampled else np.zeros(0)
        likelihood = float(logprobs.mean(dtype=np.float64)) if len(logprobs) else None
        return Given(trajectory, read, trajectory.sampled_tokens, likelihood)


class ChatAnswerer:
    """Episodes of any server that answers by text, see ``TEXT_APIS``: no token ids are needed.

    Args:
        suite: how answers are sampled. What a server cannot be told in OpenAI's fields, such as thinking, stands in
            ``fields``.
        endpoint: the server.
        environments: makes the surroundings of episodes.
        fields: of every request, in the place of those of the suite; None leaves one out.
    """

    def __init__(self, suite: Suite, endpoint: ChatEndpoint, environments: EnvironmentMaker, fields: Mapping[str, Any]):
        self._suite, self._endpoint, self._environments, self._fields = suite, endpoint, environments, fields

    async def answer(self, task: Task, place: int, sample: int) -> Given:
        """See ``Answerer.answer``."""
        self._check_length(task)
        key = EpisodeKey("eval", 0, place, sample)
        environment = self._environments.make(task)
        trajectory = Trajectory(task.id, task.domain, key.place, purpose="eval")
        environment.services = environment.services._replace(metadata=trajectory.metadata)
        try:
            read, written = await self._episode(task, key, environment, trajectory)
        finally:
            await environment.close()
        return Given(trajectory, read, written)

    async def _episode(self, task: Task, key: EpisodeKey, environment: Any, trajectory: Trajectory) -> tuple[int, int]:
        """Plays an episode to its end; returns the tokens that were read and written."""
        messages: list[Mapping[str, Any]] = []
        node, turn, read, written = ROOT, 0, 0, 0
        steps, tokens = task.budget.steps or MOST_STEPS, task.budget.tokens
        step = Step(await environment.reset(task, environment_seed(self._suite.seed, key)))
        while not (step.terminated or step.truncated):
            for message in step.observation.messages:
                node = trajectory.add(Node.observed(node, (), dict(message)))
                messages.append(message)
            finish = "length"
            if turn < steps and (tokens is None or written < tokens):
                left = self._suite.max_tokens if tokens is None else min(self._suite.max_tokens, tokens - written)
                reply = await self._endpoint.reply(
                    self._request(messages, key, turn, left, environment.tools), self._fields
                )
                said = {name: reply.message[name] for name in _MESSAGE if reply.message.get(name)}
                messages.append({"role": "assistant", "content": "", **said})
                node = trajectory.add(acted(node, turn, messages[-1]))
                read, written = read + reply.prompt_tokens, written + reply.tokens
                turn, finish = turn + 1, reply.finish
            if finish == "length":
                trajectory.status = "truncated"
                if task.judge_truncated and (left_behind := await environment.collect()):
                    trajectory.metadata[OUTCOME] = dict(left_behind)
                return read, written
            step = await environment.step(messages[-1])
        trajectory.status = "truncated" if step.truncated else "finished"
        if step.info:
            trajectory.metadata[OUTCOME] = dict(step.info)
        return read, written

    def _request(
        self, messages: Sequence[Mapping[str, Any]], key: EpisodeKey, turn: int, max_tokens: int, tools: Sequence[Any]
    ) -> dict[str, Any]:
        suite = self._suite
        request = {"messages": list(messages), "max_tokens": max_tokens, "temperature": suite.temperature}
        if suite.temperature:
            request["seed"] = turn_seed(suite.seed, key, turn) >> 1  # servers read 31 bits
        request |= {name: value for name, value in (("top_k", suite.top_k), ("tools", list(tools))) if value}
        return request | ({"top_p": suite.top_p} if suite.top_p < 1.0 else {})

    def _check_length(self, task: Task) -> None:
        """Without a vocabulary a prompt surely fits where every byte may be a token; others cannot be cut by tokens."""
        size = sum(len(str(message.get("content") or "").encode()) for message in task.instruction)
        if self._suite.overflow == "truncate" and size > self._suite.context - self._suite.max_tokens:
            raise UserError(
                f"the prompt of the task {task.id!r} may be longer than config.context {self._suite.context}, and a "
                "server of text counts no tokens in advance: use --api=tokens, or config.overflow fail"
            )


class ChoiceAnswerer:
    """The most likely of a task's continuations.

    Args:
        scores: log-probabilities of the continuations of a task, and the tokens that were read for them.
    """

    def __init__(self, scores: Callable[[Task], Awaitable[tuple[list[float], int]]]):
        self._scores = scores

    async def answer(self, task: Task, place: int, sample: int) -> Given:
        """See ``Answerer.answer``; the reward is 1 over the number of equally likely ones if the right one is."""
        continuations = task.metadata.get(CONTINUATIONS)
        if not continuations:
            raise UserError(f"the task {task.id!r} has no continuations to choose from; use method generate")
        logprobs, read = await self._scores(task)
        right = LETTERS.index(task.metadata[ANSWER])
        lengths = [len(text.strip().encode()) for text in continuations]
        by_length = [logprob / max(1, length) for logprob, length in zip(logprobs, lengths, strict=True)]
        chosen = int(np.argmax(logprobs))
        trajectory = Trajectory(task.id, task.domain, (0, place, sample), status="finished", purpose="eval")
        node = ROOT
        for message in task.instruction:
            node = trajectory.add(Node.observed(node, (), dict(message)))
        trajectory.add(acted(node, 0, {"role": "assistant", "content": continuations[chosen]}))
        parts = {"normalised": _share_of_best(by_length, right)}
        trajectory.reward = Reward(_share_of_best(logprobs, right), parts, {"logprobs": logprobs})
        return Given(trajectory, read, 0)


class ModelLikelihoods:
    """Log-probabilities of a task's continuations by a model of token ids; see ``ChoiceAnswerer``."""

    def __init__(self, suite: Suite, client: Client, chat: ChatFormat, tokenizer: Tokenizer):
        self._suite, self._client, self._chat, self._tokenizer = suite, client, chat, tokenizer

    async def __call__(self, task: Task) -> tuple[list[float], int]:
        """See ``ChoiceAnswerer``."""
        logprobs, read = [], 0
        for continuation in task.metadata[CONTINUATIONS]:
            ids, start = self._ids(task, continuation)
            logprobs.append(float((await self._client.score(ids, start)).sum(dtype=np.float64)))
            read += len(ids)
        return logprobs, read

    def _ids(self, task: Task, continuation: str) -> tuple[list[int], int]:
        """Ids of prompt and continuation, and where the continuation begins."""
        if self._suite.template == "chat":
            prompt = prompt_ids(task, self._chat)
            return [*prompt, *self._tokenizer.encode(continuation.lstrip())], len(prompt)
        text = "\n\n".join(str(message["content"]) for message in task.instruction)
        prompt, whole = map(self._tokenizer.encode_document, (text, text + continuation))  # as texts of training begin
        # A token may reach over the border: what follows is then scored from that token on.
        start = next((i for i, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(prompt))
        return whole, min(start, len(whole) - 1)


class PolicyAnswerer:
    """Episodes that a program plays, such as the oracle of a data set."""

    def __init__(self, policy: Policy, environments: EnvironmentMaker):
        self._policy, self._environments = policy, environments

    async def answer(self, task: Task, place: int, sample: int) -> Given:
        """See ``Answerer.answer``."""
        trajectory = await play(task, self._environments.make(task), self._policy)
        trajectory.key, trajectory.purpose = (0, place, sample), "eval"
        return Given(trajectory, 0, 0)


async def oracle_likelihoods(task: Task) -> tuple[list[float], int]:
    """Likelihoods of which the right continuation has the largest."""
    right = LETTERS.index(task.metadata[ANSWER])
    return [float(place == right) for place in range(len(task.metadata[CONTINUATIONS]))], 0


async def null_likelihoods(task: Task) -> tuple[list[float], int]:
    """Likelihoods that are all the same."""
    return [0.0] * len(task.metadata[CONTINUATIONS]), 0


def prompt_ids(task: Task, chat: ChatFormat) -> list[int]:
    """Token ids of a task's instruction up to the model's answer, without the tools of its environment."""
    builder = ChatBuilder(chat)
    for message in task.instruction:
        builder.add(message)
    builder.open_assistant(task.thinking)
    return builder.tokens


def cut_in_the_middle(task: Task, room: int, chat: ChatFormat, tokenizer: Tokenizer) -> Task:
    """The task with as much of the middle of its longest message left out as its prompt has too many tokens.

    Raises:
        PromptTooLongError: the other messages alone leave no room.
    """
    excess = len(prompt_ids(task, chat)) - room
    if excess <= 0:
        return task
    contents = [message.get("content") for message in task.instruction]
    texts = [content if isinstance(content, str) else "" for content in contents]
    longest = max(range(len(texts)), key=lambda index: len(texts[index]))
    ids = tokenizer.encode(texts[longest])
    while excess > 0:
        kept = len(ids) - excess
        if kept < 2:
            raise PromptTooLongError(f"its other messages leave no room in a prompt of {room:,} tokens")
        ids = [*ids[: kept - kept // 2], *ids[len(ids) - kept // 2 :]]
        messages = [dict(message) for message in task.instruction]
        messages[longest]["content"] = tokenizer.decode(ids)
        task = dataclasses.replace(task, instruction=tuple(messages))
        excess = len(prompt_ids(task, chat)) - room  # text that was cut may be other tokens
    return task


def task_digest(task: Task) -> str:
    """A checksum of what a data set asks and how it is judged, whatever a suite chooses beside that."""
    messages = [message for message in task.instruction if message["role"] != "system"]
    text = json.dumps([messages, task.verifier, task.metadata], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def failed_episode(task: Task, place: int, sample: int, error: InfrastructureError | PromptTooLongError) -> Trajectory:
    """The trajectory of an answer that could not be had."""
    failed = Trajectory(task.id, task.domain, (0, place, sample), status="masked", purpose="eval")
    failed.error = f"{type(error).__name__}: {error}"
    return failed


def _share_of_best(values: Sequence[float], right: int) -> float:
    best = [place for place, value in enumerate(values) if value == max(values)]
    return 1 / len(best) if right in best else 0.0
