"""The project's own episodes: tokens, tools and verdicts, all of it in the process that runs them.

``JudgedEpisodes`` runs them with whatever client it is given; ``EpisodeRunner`` opens all that it needs in a worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
import contextlib
import functools
import os
import time
from typing import Any

import numpy as np

from k2jax.agents.collect.engine_socket import EngineSocketClient
from k2jax.agents.collect.queue_file import WrittenTask
from k2jax.agents.collect.routing import RoutedClient, Router
from k2jax.agents.collect.wire_messages import Key
from k2jax.agents.collect.worker import Waits, made_by
from k2jax.agents.environment import Environment, EnvironmentMaker
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import spawned_seed
from k2jax.agents.registry import add_again
from k2jax.agents.roles import RoleClient, Roles
from k2jax.agents.sandbox import Sandbox, SandboxBackend, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.spawning import Spawner
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.client import ChatEndpoint, Client, Completion, HTTPClient, PromptTooLongError, Sampling
from k2jax.errors import UserError
from k2jax.text.chat import ChatFormat, configured_chat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer, load_tokenizer
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import POLICY, ROLE


class JudgedEpisodes:
    """Runs episodes of ``k2jax.agents`` and judges them.

    Args:
        client: of the model.
        chat: format of its conversations.
        tokenizer: its vocabulary.
        environments: makes environments.
        seed: of the run.
        subagents: client of sub-episodes; ``client`` where there is no other.
        scorer: asks verifiers; None judges nothing.
        token_cap: tokens after which an episode pauses and its worker takes the oldest one; 0 is no cap.
        media: reads the images of messages; None for a model of text alone.
        roles: who answers besides the model, by name; they read text alone.
        masks_long: whether an episode whose environment shows more than fits the engine is masked, and not a mistake;
            sub-episodes are in any case.
    """

    def __init__(
        self,
        client: Client,
        chat: ChatFormat,
        tokenizer: Tokenizer,
        environments: EnvironmentMaker,
        *,
        seed: int,
        subagents: Client | None = None,
        scorer: Scorer | None = None,
        token_cap: int = 0,
        media: MediaReader | None = None,
        roles: Mapping[str, RoleClient] | None = None,
        masks_long: bool = False,
    ):
        self.roles = Roles({POLICY: RoleClient(client, chat, tokenizer), **(roles or {})})
        self._subagents, self._environments = subagents or client, environments
        self._seed, self._scorer, self._token_cap, self._media = seed, scorer, token_cap, media
        self._masks_long = masks_long

    async def run(
        self,
        key: Key,
        written: WrittenTask,
        sampling: Sampling,
        trajectory: Trajectory | None,
        spawner: Spawner,
    ) -> tuple[Trajectory, Waits]:
        """See ``Runner.run``; ``sampling`` is of the episode's messages."""
        task, episode, asked = written.task, written.episode(key), self.roles.client_of(written.role)
        by_policy = written.role == POLICY
        client = _TimedClient(self._subagents if spawner.path and by_policy else asked.client)
        environment, clock = self._environments.make(task), _Stopwatch()
        environment.services = environment.services._replace(client_of=self.roles.client_of)
        clock.follow(environment)
        options = {
            "key": episode,
            "seed": spawned_seed(self._seed, episode, spawner.path),
            "sampling": asked.sampling or sampling,
            "token_cap": self._token_cap,
            "trajectory": trajectory,
            "spawner": spawner,
            "media": self._media if by_policy else None,
        }
        try:
            trajectory = await run_episode(task, client, asked.chat, asked.tokenizer, environment, **options)
        except PromptTooLongError as error:  # by what the environment has added to the instruction
            if not (self._masks_long or spawner.path):  # what a sub-episode is asked, an agent may have written
                raise UserError(f"the task {task.id!r} of class {written.kind!r} cannot begin: {error}") from error
            masked = {"status": "masked", "error": f"PromptTooLongError: {error}"}
            return Trajectory(task.id, task.domain, episode.place, purpose=episode.purpose, **masked), Waits()
        if spawner.path:
            trajectory.metadata[ROLE] = written.role
        began = time.monotonic()
        judged = bool(spawner.path) or written.choices is None or written.choices.judged
        if self._scorer is not None and judged and task.verifier and trajectory.status in ("finished", "truncated"):
            await self._scorer.judge(task, trajectory)
        return trajectory, Waits(client.clock.seconds, clock.seconds, time.monotonic() - began)


class EpisodeRunner:
    """Opens what the episodes of a worker need, and runs them.

    Args:
        tokenizer: folder of the vocabulary.
        chat: chat format, see ``configured_chat``.
        seed: of the run.
        sampling: of each class of tasks, the fields of ``Sampling`` by name; a line's own choices come first.
        engines: paths of the sockets of engines with the same weights, or none.
        subagents: path of a socket for sub-episodes of one such engine; empty where they ask as others do.
        url: of an OpenAI-compatible server that takes token ids, or empty.
        model: its name on the server.
        token_cap: see ``JudgedEpisodes``.
        sandbox: backend of tools and verifiers.
        images: what tasks may choose their images from; see ``make_backend``.
        hosts: what tasks may choose the hosts from that their sandboxes reach; see ``make_backend``.
        scoring: see ``ScoringConfig``, of which ``sandbox`` is the backend of verifiers that run code; None judges
            nothing.
        judge: of verifiers that ask a model: ``url``, ``model`` and the options of ``ChatEndpoint``; None is no model.
        media: the ``maker`` of what reads the images of messages, as ``module:attribute``, and its options; None for a
            model of text alone.
        roles: of each role its ``engine``, the path of a socket, and its ``sampling``, the fields of ``Sampling``.
        masks_long: see ``JudgedEpisodes``.
        added: what no package declares; see ``added_here``.
    """

    def __init__(
        self,
        *,
        tokenizer: str,
        chat: str,
        seed: int,
        sampling: Mapping[str, Mapping[str, Any]] | None = None,
        engines: Sequence[str] = (),
        subagents: str = "",
        url: str = "",
        model: str = "",
        token_cap: int = 0,
        sandbox: str = "bubblewrap",
        images: str = "",
        hosts: Sequence[str] = (),
        scoring: Mapping[str, Any] | None = None,
        judge: Mapping[str, Any] | None = None,
        media: Mapping[str, Any] | None = None,
        roles: Mapping[str, Mapping[str, Any]] | None = None,
        masks_long: bool = False,
        added: Sequence[tuple[str, str, str]] = (),
    ):
        add_again(added)
        self._tokenizer = load_tokenizer(tokenizer)
        self._chat = configured_chat(self._tokenizer, chat)
        self._sampling = {kind: Sampling.from_json(fields) for kind, fields in (sampling or {}).items()}
        self._engines, self._asks_below, self._url, self._model = engines, subagents, url, model
        self._images, self._judge, self._role_options = images, judge, dict(roles or {})
        self.roles = (POLICY, *self._role_options)
        self._scoring = None if scoring is None else {"sandbox": sandbox, **scoring}
        reader = None if media is None else made_by(**media)
        self._options = {"seed": seed, "token_cap": token_cap, "media": reader, "masks_long": masks_long}
        self._environments = EnvironmentMaker(sandbox, images=images, repositories=None, hosts=hosts)

    async def __aenter__(self) -> EpisodeRunner:
        self._opened = contextlib.AsyncExitStack()
        client = subagents = await self._open_client()
        if isinstance(client, RoutedClient):
            subagents = client.subagents
        elif self._asks_below:
            subagents = EngineSocketClient(self._asks_below)
            self._opened.push_async_callback(subagents.close)
        shared = client, self._chat, self._tokenizer, self._environments
        opened = {"subagents": subagents, "scorer": self._open_scorer(), "roles": self._open_roles()}
        self._episodes = JudgedEpisodes(*shared, **opened, **self._options)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._opened.aclose()

    async def run(
        self, key: Key, written: WrittenTask, trajectory: Trajectory | None, spawner: Spawner
    ) -> tuple[Trajectory, Waits]:
        """See ``Runner.run``."""
        return await self._episodes.run(key, written, self._sampling_of(written), trajectory, spawner)

    def _sampling_of(self, written: WrittenTask) -> Sampling:
        return written.sampling or self._sampling[written.kind]

    async def _open_client(self) -> Client:
        if self._engines:
            clients = [EngineSocketClient(path) for path in self._engines]
            for client in clients:
                self._opened.push_async_callback(client.close)
            return RoutedClient(clients, Router(len(clients))) if len(clients) > 1 else clients[0]
        key = os.environ.get("OPENAI_API_KEY")
        client = HTTPClient(self._url, self._model, api_key=key, version=0)  # its weights do not change
        return await self._opened.enter_async_context(client)

    def _open_roles(self) -> dict[str, RoleClient]:
        roles = {}
        for name, options in self._role_options.items():
            client, sampling = EngineSocketClient(options["engine"]), Sampling.from_json(options["sampling"])
            self._opened.push_async_callback(client.close)
            roles[name] = RoleClient(client, self._chat, self._tokenizer, sampling)
        return roles

    def _open_scorer(self) -> Scorer | None:
        if self._scoring is None:
            return None
        sizes = {name: value for name, value in self._scoring.items() if name != "sandbox"}
        pool = self._opened.enter_context(VerifierPool(**sizes))
        backend = _DeferredBackend(lambda: make_backend(self._scoring["sandbox"], images=self._images))
        model = None if self._judge is None else functools.partial(_endpoint, **self._judge)
        return Scorer(pool, backend=backend, model=model)


def _endpoint(url: str, model: str, api_key_variable: str = "", **options: Any) -> ChatEndpoint:
    """The endpoint of verifiers that ask a model; its key stays in the environment."""
    return ChatEndpoint(url, model, api_key=os.environ.get(api_key_variable) if api_key_variable else None, **options)


class _DeferredBackend(SandboxBackend):
    """A backend that is made when a verifier first opens a sandbox: most verifiers need none."""

    def __init__(self, make: Callable[[], SandboxBackend]):
        self._made = functools.cache(make)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return await self._made().open(spec)


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

    async def longest_sequence(self) -> int | None:
        return await self._client.longest_sequence()
