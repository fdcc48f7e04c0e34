"""What a pipeline asks of models, and the models: a chat endpoint, a program, and one in which much goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
import random
from typing import Any, NamedTuple, Protocol

from k2jax.client import ChatEndpoint
from k2jax.client.http import ServerFailedError
from k2jax.synthesize.stages import seed_of

Message = Mapping[str, Any]


class ModelQuestion(NamedTuple):
    """One request to a model.

    Attributes:
        role: who is asked, such as ``writer``, ``agent``, ``user`` or ``judge``.
        purpose: of the question, by which a program knows what is asked.
        messages: in OpenAI's format.
        inputs: what the messages were made of, for programs that play models; they are never sent.
        tools: declarations in OpenAI's format.
        schema: of a structured answer; empty for any text.
    """

    role: str
    purpose: str
    messages: Sequence[Message]
    inputs: Mapping[str, Any] = {}
    tools: Sequence[Mapping[str, Any]] = ()
    schema: Mapping[str, Any] = {}


class Reply(NamedTuple):
    """What a model says.

    Attributes:
        message: of the assistant, in OpenAI's format.
        finish: finish reason.
        prompt_tokens: of the question, as far as they are known.
        tokens: of the answer.
    """

    message: dict[str, Any]
    finish: str = "stop"
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def text(self) -> str:
        """What it says, without calls."""
        return str(self.message.get("content") or "")


class AskedModel(Protocol):
    """Whatever answers questions.

    Attributes:
        name: by which answers are kept and replayed: the model's, and all that its answers depend on.
    """

    name: str

    async def reply(self, question: ModelQuestion, seed: int) -> Reply:
        """The answer to a question, with the random numbers of a seed.

        Raises:
            InfrastructureError: whoever answers has failed; the record is tried again.
            UserError: it refuses the question; the pipeline ends.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...


class EndpointModel:
    """A model behind OpenAI's chat completions.

    Args:
        endpoint: the server.
        fields: of every request, such as ``temperature`` and ``max_tokens``.
        sends_schema: whether schemas of structured answers are sent, for the server to constrain its sampling.
    """

    def __init__(self, endpoint: ChatEndpoint, fields: Mapping[str, Any], sends_schema: bool = False):
        self._endpoint, self._fields, self._sends_schema = endpoint, fields, sends_schema
        self.name = f"{endpoint.model} {sorted(fields.items())}{' by schema' if sends_schema else ''}"

    async def reply(self, question: ModelQuestion, seed: int) -> Reply:
        """See ``AskedModel``."""
        tools = {"tools": list(question.tools)} if question.tools else {}
        asked = {"messages": list(question.messages), **self._fields, **tools, "seed": seed}
        if self._sends_schema and question.schema:
            form = {"name": question.purpose, "schema": question.schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": form}
        reply = await self._endpoint.reply(asked)
        kept = {key: reply.message[key] for key in ("content", "tool_calls") if reply.message.get(key)}
        return Reply({"role": "assistant", "content": "", **kept}, reply.finish, reply.prompt_tokens, reply.tokens)

    async def close(self) -> None:
        """See ``AskedModel``."""
        await self._endpoint.__aexit__(None, None, None)


class ProgramModel:
    """A program in the place of a model: it answers from the inputs of a question.

    Args:
        name: of the program.
        answer: the message to a question, with a seed. Tokens are counted as words.
    """

    def __init__(self, name: str, answer: Callable[[ModelQuestion, int], Mapping[str, Any]]):
        self.name, self._answer = name, answer

    async def reply(self, question: ModelQuestion, seed: int) -> Reply:
        """See ``AskedModel``."""
        message = {"role": "assistant", "content": "", **self._answer(question, seed)}
        words = sum(len(str(one.get("content") or "").split()) for one in question.messages)
        return Reply(message, "stop", words, len(str(message).split()))

    async def close(self) -> None:
        """See ``AskedModel``."""


MISHAPS = ("slow", "malformed", "refusing", "failing")
_SECONDS = 0.05


class ChaosModel:
    """Another model whose answers are late, malformed, refusals, or do not come, each at the same rate.

    Malformed answers and refusals depend on the question's seed alone, so that another run has the same ones. That it
    fails does not, or it would fail at every attempt.

    Args:
        model: the other one.
        rate: share of questions with a mishap.
    """

    def __init__(self, model: AskedModel, rate: float):
        self._model, self._rate, self.name = model, rate, model.name

    async def reply(self, question: ModelQuestion, seed: int) -> Reply:
        """See ``AskedModel``."""
        if random.random() < self._rate / 4:
            raise ServerFailedError("the model of chaos does not answer")
        if random.random() < self._rate / 4:
            await asyncio.sleep(_SECONDS)
        reply = await self._model.reply(question, seed)
        draw = random.Random(seed_of("chaos", seed)).random()
        if draw < self._rate / 4:
            return reply._replace(message={"role": "assistant", "content": reply.text[: len(reply.text) // 2] + "}{"})
        if draw < self._rate / 2:
            return reply._replace(message={"role": "assistant", "content": "I cannot help with that."})
        return reply

    async def close(self) -> None:
        """See ``AskedModel``."""
        await self._model.close()
