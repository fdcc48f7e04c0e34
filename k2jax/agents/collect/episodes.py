"""The runner of the project's own episodes: tokens, tools and verdicts, all of it in the worker's process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
import contextlib
import os
import time
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_socket import EngineSocketClient
from k2jax.agents.collect.routing import RoutedClient, Router
from k2jax.agents.collect.wire_messages import Key
from k2jax.agents.collect.worker import Waits, made_by
from k2jax.agents.environment import Environment, EnvironmentMaker
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey, spawned_seed
from k2jax.agents.registry import environments, toolsets
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.spawning import Spawner
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.client import Client, Completion, HTTPClient, Sampling
from k2jax.text.chat import configured_chat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import load_tokenizer
from k2jax.trajectory import Trajectory


class EpisodeRunner:
    """Runs episodes of ``k2jax.agents`` and judges them.

    Args:
        tokenizer: folder of the vocabulary.
        chat: chat format, see ``configured_chat``.
        seed: of the run.
        sampling: of each class of tasks, the fields of ``Sampling`` by name.
        engines: paths of the sockets of engines with the same weights, or none.
        url: of an OpenAI-compatible server that takes token ids, or empty.
        model: its name on the server.
        token_cap: tokens after which an episode pauses and its worker takes the oldest one; 0 is no cap.
        sandbox: backend of tools and verifiers.
        images: what tasks may choose their images from; see ``make_backend``.
        scoring: workers, timeout and retries of verifiers, and the ``sandbox`` of those that run code, see
            ``ScoringConfig``; None judges nothing.
        media: the ``maker`` of what reads the images of messages, as ``module:attribute``, and its options; None for a
            model of text alone.
        added: paths of environments and toolsets that no package declares, by the registry's noun and their names.
    """

    def __init__(
        self,
        *,
        tokenizer: str,
        chat: str,
        seed: int,
        sampling: Mapping[str, Mapping[str, Any]],
        engines: Sequence[str] = (),
        url: str = "",
        model: str = "",
        token_cap: int = 0,
        sandbox: str = "bubblewrap",
        images: str = "",
        scoring: Mapping[str, Any] | None = None,
        media: Mapping[str, Any] | None = None,
        added: Sequence[tuple[str, str, str]] = (),
    ):
        for noun, name, path in added:
            {"environment": environments, "toolset": toolsets}[noun].add(name, path)
        self._tokenizer = load_tokenizer(tokenizer)
        self._chat = configured_chat(self._tokenizer, chat)
        self._seed, self._token_cap = seed, token_cap
        self._sampling = {kind: Sampling(**fields) for kind, fields in sampling.items()}
        self._engines, self._url, self._model = engines, url, model
        self._images = images
        self._scoring = None if scoring is None else {"sandbox": sandbox, **scoring}
        self._media: MediaReader | None = None
        if media is not None:
            self._media = made_by(**media)
        self._environments = EnvironmentMaker(sandbox, images=images, repositories=None)
        self._scorer: Scorer | None = None
        self._preparing = asyncio.Lock()

    async def __aenter__(self) -> EpisodeRunner:
        self._opened = contextlib.AsyncExitStack()
        self._client = self._subagents = await self._open_client()
        if isinstance(self._client, RoutedClient):
            self._subagents = self._client.subagents
        if self._scoring is not None:
            sizes = {name: value for name, value in self._scoring.items() if name != "sandbox"}
            self._pool = self._opened.enter_context(VerifierPool(**sizes))
            self._scorer = Scorer(self._pool)
            self._with_sandbox = False
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._opened.aclose()

    async def run(
        self, key: Key, kind: str, task: Task, trajectory: Trajectory | None, spawner: Spawner
    ) -> tuple[Trajectory, Waits]:
        """See ``Runner.run``."""
        episode = EpisodeKey("train", *key)
        client = _TimedClient(self._subagents if spawner.path else self._client)
        environment, clock = self._environments.make(task), _Stopwatch()
        clock.follow(environment)
        trajectory = await run_episode(
            task,
            client,
            self._chat,
            self._tokenizer,
            environment,
            key=episode,
            seed=spawned_seed(self._seed, episode, spawner.path),
            sampling=self._sampling[kind],
            token_cap=self._token_cap,
            trajectory=trajectory,
            spawner=spawner,
            media=self._media,
        )
        began = time.monotonic()
        if self._scorer is not None and task.verifier and trajectory.status in ("finished", "truncated"):
            await self._prepare_scoring(task)
            await self._scorer.judge(task, trajectory)
        return trajectory, Waits(client.clock.seconds, clock.seconds, time.monotonic() - began)

    async def _open_client(self) -> Client:
        if self._engines:
            clients = [EngineSocketClient(path) for path in self._engines]
            for client in clients:
                self._opened.push_async_callback(client.close)
            return RoutedClient(clients, Router(len(clients))) if len(clients) > 1 else clients[0]
        key = os.environ.get("OPENAI_API_KEY")
        client = HTTPClient(self._url, self._model, api_key=key, version=0)  # its weights do not change
        return await self._opened.enter_async_context(client)

    async def _prepare_scoring(self, task: Task) -> None:
        """Gives the scorer a backend of sandboxes when the first verifier needs one."""
        async with self._preparing:
            if not self._with_sandbox and await self._pool.needs_sandbox(task.verifier):
                self._scorer = Scorer(self._pool, backend=make_backend(self._scoring["sandbox"], images=self._images))
                self._with_sandbox = True


class _Stopwatch:
    """Knows how long one episode has waited for something [s]."""

    def __init__(self):
        self.seconds, self._runs = 0.0, False

    async def timed(self, waiting: Awaitable[Any]) -> Any:
        """What is waited for; what that waits for itself counts once."""
        if self._runs:
            return await waiting
        self._runs, began = True, time.monotonic()
        try:
            return await waiting
        finally:
            self._runs = False
            self.seconds += time.monotonic() - began

    def follow(self, environment: Environment) -> None:
        """Times what an episode calls of its environment, which no other episode has."""
        for name in ("reset", "step", "close", "open_workspace", "collect"):
            setattr(environment, name, self._timing(getattr(environment, name)))

    def _timing(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        return lambda *arguments, **options: self.timed(method(*arguments, **options))


class _TimedClient(Client):
    """A client, which all episodes share, for one of them."""

    def __init__(self, client: Client):
        self._client, self.clock = client, _Stopwatch()

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **options: Any) -> Completion:
        return await self.clock.timed(self._client.generate(prompt, sampling, **options))

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        return await self.clock.timed(self._client.score(ids, start, media))
