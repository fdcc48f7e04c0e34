"""The model of an evaluation: opened once for all suites, and known again by its weights when that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.registry import oracles
from k2jax.agents.scaffolds.prompt_lengths import known_tools
from k2jax.agents.scaffolds.scripted import null_policy
from k2jax.agents.task import Task
from k2jax.client import ChatEndpoint, Client, HTTPClient
from k2jax.errors import UserError
from k2jax.evaluate.answerers import (
    Answerer,
    ChatAnswerer,
    ChoiceAnswerer,
    ModelLikelihoods,
    PolicyAnswerer,
    TokenAnswerer,
    null_likelihoods,
    oracle_likelihoods,
    prompt_ids,
)
from k2jax.evaluate.suite import Suite
from k2jax.text.chat import ChatBuilder, ChatFormat, configured_chat
from k2jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from k2jax.inference.request_client import RequestClient

PROGRAMS = ("oracle", "null")
"""Models that are none: the policy that solves a data set, and the one that says nothing."""
TOKENS = "tokens"
"""The API with token ids; those of ``TEXT_APIS`` are by text."""
_KEYS = {"messages": "ANTHROPIC_API_KEY"}
_KEY = "OPENAI_API_KEY"
_ROUND = 64
MakeAnswerer = Callable[[Suite], Answerer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which model answers, and how it is reached.

    Attributes:
        model: a checkpoint argument, a URL without /v1, ``oracle`` or ``null``.
        api: of a server: ``chat``, ``completions``, ``responses`` or ``messages`` by text, see ``TEXT_APIS``; or
            ``tokens`` for completions with token ids.
        served_model: the server's name for its model.
        tokenizer: of a server with token ids: a checkpoint or file with its vocabulary.
        chat_format: of conversations, see ``configured_chat``; empty is that of the checkpoint's run, or ``auto``.
        fields: of every request by text, in the place of those of the suite; None leaves one out.
        slots: sequences that an engine runs at a time.
        max_length: an engine's longest sequence; 0 is that of the longest prompt and its answer [tokens].
    """

    model: str
    api: str = "chat"
    served_model: str = ""
    tokenizer: str = ""
    chat_format: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slots: int = 16
    max_length: int = 0

    @property
    def is_server(self) -> bool:
        """Whether the model is reached over HTTP."""
        return self.model.startswith(("http://", "https://"))

    @property
    def key(self) -> str:
        """Name of the environment variable with the server's API key."""
        return _KEYS.get(self.api, _KEY)

    @property
    def is_program(self) -> bool:
        """Whether no model answers."""
        return self.model in PROGRAMS

    def with_length(self, max_length: int) -> ModelChoice:
        """This model with another longest sequence of its engine, where it has an engine and says none itself."""
        has_engine = not (self.is_server or self.is_program)
        return dataclasses.replace(self, max_length=max_length) if has_engine and not self.max_length else self

    def check(self, suites: Mapping[str, Suite]) -> None:
        """Raises UserError where a setting is missing or has no meaning, or a suite asks what the model cannot give."""
        by_text = self.is_server and self.api != TOKENS
        if self.is_server and (urlsplit(self.model).username or urlsplit(self.model).query):
            raise UserError(
                f"--model has a user or a query, which would be written down; the key is read from ${self.key}"
            )
        if self.is_server and not self.served_model:
            raise UserError("--served_model is required with a URL: the server's name for its model")
        if self.is_server and self.api == TOKENS and not self.tokenizer:
            raise UserError("--tokenizer is required with --api=tokens: a checkpoint or file with the vocabulary")
        unread = {
            "served_model": (self.served_model, self.is_server),
            "tokenizer": (self.tokenizer, self.is_server and not by_text),
            "chat_format": (self.chat_format, not by_text and not self.is_program),
            "request": (self.fields, by_text),
            "max_length": (self.max_length, not self.is_server and not self.is_program),
        }
        for name, (value, is_read) in unread.items():
            if value and not is_read:
                raise UserError(f"--{name} is not read with --model={self.model}; leave it out")
        for name, suite in suites.items():
            if by_text and suite.method == "choices":
                raise UserError(f"{name}: a server of text gives no log-probabilities of choices; use --api=tokens")
            if by_text and suite.scaffold:
                raise UserError(f"{name}: config.scaffold acts on token ids; use a checkpoint or --api=tokens")
            if (by_text or self.is_program) and "best" in suite.metrics:
                raise UserError(f"{name}: the metric best needs log-probabilities; use a checkpoint or --api=tokens")

    def identity(self) -> dict[str, Any]:
        """What has to be the same where an evaluation goes on: the model and, of files, the weights themselves."""
        named = ("model", "api", "served_model", "tokenizer", "chat_format", "fields", "max_length")
        known = {name: getattr(self, name) for name in named}
        return known | {"weights": [] if self.is_server or self.is_program else _weights(self.model)}


@contextlib.asynccontextmanager
async def open_model(
    choice: ModelChoice, suites: Mapping[str, tuple[Suite, Sequence[Task]]], environments: EnvironmentMaker
) -> AsyncIterator[MakeAnswerer]:
    """What makes the answerer of each suite, over one engine or server.

    Args:
        choice: which model.
        suites: with their tasks, whose lengths an engine is made for.
        environments: makes the surroundings of episodes.

    Raises:
        UserError: the model cannot be opened.
    """
    if choice.is_program:
        yield lambda suite: _program(choice.model, suite, environments)
        return
    key = os.environ.get(choice.key) or None
    if choice.is_server and choice.api != TOKENS:
        async with ChatEndpoint(choice.model, choice.served_model, api=choice.api, api_key=key) as endpoint:
            yield lambda suite: ChatAnswerer(suite, endpoint, environments, choice.fields)
        return
    tokenizer, chat = vocabulary_of(choice)
    _check_tools(suites, chat)
    async with contextlib.AsyncExitStack() as opened:
        if choice.is_server:
            client: Client = await opened.enter_async_context(
                HTTPClient(choice.model, choice.served_model, api_key=key, version=0)
            )
        else:
            client = opened.enter_context(_engine(choice, _longest(suites, chat), suites))

        def make(suite: Suite) -> Answerer:
            if suite.method == "choices":
                return ChoiceAnswerer(ModelLikelihoods(suite, client, chat, tokenizer))
            return TokenAnswerer(suite, client, chat, tokenizer, environments)

        yield make


def _program(name: str, suite: Suite, environments: EnvironmentMaker) -> Answerer:
    if suite.method == "choices":
        return ChoiceAnswerer(oracle_likelihoods if name == "oracle" else null_likelihoods)
    return PolicyAnswerer(oracles.get(suite.dataset) if name == "oracle" else null_policy, environments)


def vocabulary_of(choice: ModelChoice) -> tuple[Tokenizer, ChatFormat]:
    """The vocabulary of a model, and the format of its conversations.

    Raises:
        UserError: it has no such vocabulary, or no such format.
    """
    from k2jax.checkpoint import run_config, run_folder
    from k2jax.convert.loading import tokenizer_of

    tokenizer, kind = tokenizer_of(choice.tokenizer or choice.model), choice.chat_format
    folder = None if choice.is_server else run_folder(choice.model)
    if not kind and folder is not None and (folder / "checkpoints").is_dir():
        kind = run_config(folder).data.chat_format
    try:
        return tokenizer, configured_chat(tokenizer, kind or "auto")
    except UserError as error:
        raise UserError(f"{error}; of a base model, --chat_format=plain asks without markup") from None


def _check_tools(suites: Mapping[str, tuple[Suite, Sequence[Task]]], chat: ChatFormat) -> None:
    """Raises UserError where a suite's tasks have tools that the chat format cannot declare, before any is asked."""
    for name, (_, tasks) in suites.items():
        declared = {json.dumps(tools): tools for task in tasks if (tools := known_tools(task))}
        for tools in declared.values():
            try:
                ChatBuilder(chat, tools)
            except UserError as error:
                raise UserError(f"{name}: {error}") from None


def _longest(suites: Mapping[str, tuple[Suite, Sequence[Task]]], chat: ChatFormat) -> int:
    """Length of the longest prompt with its answer, as far as the suites' contexts let them be."""
    longest = 0
    for suite, tasks in suites.values():
        lengths = [len(prompt_ids(task, chat)) + suite.max_tokens for task in tasks]
        longest = max(longest, min(max(lengths), suite.context or max(lengths)))
    return -(-longest // _ROUND) * _ROUND


@contextlib.contextmanager
def _engine(choice: ModelChoice, longest: int, suites: Mapping[str, tuple[Suite, Sequence[Task]]]):
    """The client of an engine of a checkpoint, which ends with the block."""
    several = [name for name, (_, tasks) in suites.items() if any(task.environment != "single_turn" for task in tasks)]
    if several and not choice.max_length:
        raise UserError(f"{several[0]} has episodes of several turns: say with --max_length how long they may become")
    with open_engine_client(dataclasses.replace(choice, max_length=choice.max_length or longest)) as (client, _):
        yield client


@contextlib.contextmanager
def open_engine_client(choice: ModelChoice) -> Iterator[tuple[RequestClient, Tokenizer]]:
    """An engine of a checkpoint, of ``choice.slots`` sequences of ``choice.max_length``, and the vocabulary.

    Raises:
        UserError: the checkpoint cannot be read.
    """
    from k2jax.convert.loading import tokenizer_of
    from k2jax.inference import Worker
    from k2jax.inference.client import EngineClient
    from k2jax.inference.loading import load_engine

    worker = Worker(load_engine(choice.model, slots=choice.slots, max_length=choice.max_length))
    try:
        yield EngineClient(worker), tokenizer_of(choice.model)
    finally:
        worker.stop()


def _weights(checkpoint: str) -> list[Any]:
    """The step of a run, or names, sizes and times of the files of a folder; of a packaged model its name says all."""
    from k2jax.checkpoint import checkpoint_step, run_folder

    path = Path(checkpoint)
    if (run_folder(path) / "checkpoints").is_dir():
        return [checkpoint_step(path).name]
    if not path.exists():
        return []
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
