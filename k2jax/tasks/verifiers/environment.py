"""An environment of the package ``verifiers`` as one of ours.

The package runs an episode itself and asks a client for answers. Here that client waits: what it is asked becomes the
next observation, and the action is its answer. So the tokens that the model sampled are recorded as in every other
episode, nothing goes over a wire, and the package's own rubric judges what its environment saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import copy
import functools
import math
from typing import Any, NamedTuple

from k2jax.agents.environment import Message, Observation, Step
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.verifiers.package import (
    ENVIRONMENT,
    is_machines_fault,
    load_environment,
    reward_errors,
    verifiers_package,
)

_MODEL = "k2"


class _Request(NamedTuple):
    """What an environment asks: messages and tools in OpenAI's format, and where the answer goes."""

    messages: list[Message]
    tools: list[Mapping[str, Any]]
    answer: asyncio.Future[Message]


class VerifiersEnvironment:
    """The environment that a task's metadata name.

    An environment whose prompts are not what was said before and something behind it has no place in a conversation,
    and is refused. Episodes are rebuilt by replay, so an environment that draws random numbers without a seed cannot
    pause.

    Attributes:
        tools: declarations in OpenAI's format; known after ``reset``.
    """

    def __init__(self):
        """Loads nothing."""
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._name = ""
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._episode: asyncio.Task[Mapping[str, Any]] | None = None
        self._asked: _Request | None = None
        self._errors: list[Exception] = []

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begins an episode; the observation is the first prompt.

        Raises:
            UserError: the task names no environment, or one that cannot be loaded.
            EnvironmentFailedError: it failed before it asked anything.
        """
        await self.close()
        try:
            told = task.metadata[ENVIRONMENT]
            self._name, arguments, row = str(told["environment"]), str(told["arguments"]), dict(told["input"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the task {task.id!r} is none of the dataset 'verifiers'") from None
        environment = load_environment(self._name, arguments)
        self._requests, self._errors = asyncio.Queue(), []
        reward_errors.set(self._errors)
        client = _client_class()(self._requests)
        running = environment.run_rollout(copy.deepcopy(row), client, _MODEL, {}, state_columns=["stop_condition"])
        self._episode = asyncio.create_task(running)
        self._episode.add_done_callback(lambda episode, requests=self._requests: requests.put_nowait(None))
        step = await self._next({})
        if step.terminated or step.truncated:
            raise EnvironmentFailedError(f"the environment {self._name!r} asked the model nothing")
        return step.observation

    async def step(self, action: Message) -> Step:
        """Answers what the environment asked; the step's ``info`` at the end has the reward, its parts and its stop.

        Raises:
            UserError: the environment asks what is no continuation.
            EnvironmentFailedError: it failed, or a judge of its rubric did.
        """
        if self._asked is None:
            raise EnvironmentFailedError(f"the environment {self._name!r} waits for no answer")
        if not self._asked.answer.done():
            self._asked.answer.set_result(action)
        return await self._next(action)

    async def close(self) -> None:
        """Ends the episode; what the environment frees at its end is freed."""
        episode, self._episode, self._asked = self._episode, None, None
        if episode is not None:
            episode.cancel()
            await asyncio.gather(episode, return_exceptions=True)

    async def _next(self, action: Message) -> Step:
        """The step to the environment's next request, or to its end."""
        before, self._asked = self._asked, await self._requests.get()
        if self._asked is None:
            assert self._episode is not None
            return self._last_step(self._episode)
        prompt = self._asked.messages
        if before is None:
            self.tools = self._asked.tools
            return Step(Observation(tuple(prompt)))
        known = len(before.messages)
        said = prompt[known] if len(prompt) > known + 1 else {}
        if prompt[:known] != before.messages or not _is_same(said, action) or self._asked.tools != list(self.tools):
            raise UserError(
                f"the environment {self._name!r} changes its tools or what was said before; an episode can only go on"
            )
        return Step(Observation(tuple(_named(message, action) for message in prompt[known + 1 :])))

    def _last_step(self, episode: asyncio.Task[Mapping[str, Any]]) -> Step:
        """The end of an episode, or the exception that ended it."""
        failure = episode.exception()
        if failure is None and episode.result().get("error"):
            failure = RuntimeError(str(episode.result()["error"]))
        failure = failure or next(filter(is_machines_fault, self._errors), None)
        if failure is not None:
            reason = abbreviate(f"{type(failure).__name__}: {failure}", 300)
            raise EnvironmentFailedError(f"the environment {self._name!r} failed: {reason}")
        result = episode.result()
        numbers = {"reward": result["reward"], **(result.get("metrics") or {})}
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers.values()):
            raise EnvironmentFailedError(f"the rubric of {self._name!r} gave no finite numbers: {abbreviate(numbers)}")
        outcome = {
            "reward": float(result["reward"]),
            "metrics": {name: float(value) for name, value in (result.get("metrics") or {}).items()},
            "stop": str(result.get("stop_condition") or ""),
        }
        truncated = bool(result.get("is_truncated"))
        return Step(Observation(), terminated=not truncated, truncated=truncated, info=outcome)


def _is_same(said: Message, action: Message) -> bool:
    """Whether an environment shows an answer as it was given."""
    calls = [
        [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in m.get("tool_calls") or ()]
        for m in (said, action)
    ]
    same_text = (said.get("content") or "") == (action.get("content") or "")
    return said.get("role") == "assistant" and same_text and calls[0] == calls[1]


def _named(message: Message, action: Message) -> Message:
    """A message as chat formats want it: a tool's result tells the tool's name."""
    if message["role"] != "tool":
        return message
    names = {call["id"]: call["function"]["name"] for call in action.get("tool_calls") or ()}
    return {**message, "name": names.get(message["tool_call_id"], "tool")}


@functools.cache
def _client_class() -> type:
    """The package's client of chat completions with a queue in the place of a server."""
    from openai.types.chat import ChatCompletion

    package = verifiers_package()

    class WaitingClient(package.OpenAIChatCompletionsClient):
        """Puts what it is asked into the queue that it is made with, and waits for the answer."""

        async def get_native_response(self, prompt, model, sampling_args, tools=None, **options):
            """The answer in the form of a server's."""
            messages = [{key: value for key, value in dict(m).items() if value is not None} for m in prompt]
            answer = asyncio.get_running_loop().create_future()
            self._client.put_nowait(_Request(messages, [dict(tool) for tool in tools or ()], answer))
            message = {"content": "", **await answer}
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "finish_reason": finish, "message": message}
            return ChatCompletion.model_validate(
                {"id": "", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
            )

        async def raise_from_native_response(self, response):
            """An empty answer is the model's own, and no failure."""

        async def from_native_response(self, response):
            """The answer in the package's form; without text it has an empty one."""
            read = await super().from_native_response(response)
            if read.message.content is None:
                read.message.content = ""
            return read

        async def close(self):
            """Nothing."""

    return WaitingClient
