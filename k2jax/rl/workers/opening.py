"""The sampler of a run, opened: its client, its pool of episodes, the window and the log of complete groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
from pathlib import Path
import shutil
import socket
from typing import Any

from k2jax.agents.collect.admission import Admission
from k2jax.agents.collect.engine_address import EngineAddress, tcp_listener
from k2jax.agents.collect.engine_socket import EngineServer
from k2jax.agents.collect.episodes import JudgedEpisodes
from k2jax.agents.collect.event_loop import LagProbe, calm_collector
from k2jax.agents.collect.launchers import LocalLauncher, RayLauncher
from k2jax.agents.collect.pool import LeasedPool
from k2jax.agents.collect.wire_messages import EngineLoad
from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.registry import added_here
from k2jax.agents.roles import RoleClient
from k2jax.agents.scorer import Scorer
from k2jax.client import Client
from k2jax.config.build import to_json
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.files.short_folder import short_folder
from k2jax.inference import ContinuousClient
from k2jax.inference.engine import Engine
from k2jax.inference.media import placed_chunk
from k2jax.inference.roles import FrozenModel
from k2jax.rl.engines.engine_checks import check_engines
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.engines.frozen_roles import clients_of
from k2jax.rl.methods.base import Methods, Parts
from k2jax.rl.workers.group_log import GroupLog
from k2jax.rl.workers.rollouts import Rollouts
from k2jax.rl.workers.tracing import IterationTrace
from k2jax.rl.workers.window import DrawWindow
from k2jax.rl.workers.worker_episodes import LocalPool, Pool, WorkerEpisodes
from k2jax.rl.workers.worker_sampler import WorkerSampler
from k2jax.text.media_reading import MediaReader
from k2jax.trajectory.steps import POLICY

RUNNER = "k2jax.agents.collect.episodes:EpisodeRunner"
FOLDER = "workers"
"""Folder of a workdir where worker processes keep sub-episodes; it begins empty with every start."""
SUBAGENTS = "policy's sub-agents"
"""Name of the socket over which workers ask for tokens of sub-episodes, where the policy has several engines."""
_OBSERVED = 0.5
"""Time between two looks at the engine's cache [s]."""


def check_workers(config: Config) -> None:
    """Rejects what the sampler ``workers`` cannot run, and its keys without it.

    Raises:
        UserError: in one line that names the keys.
    """
    rollout = config.rl.rollout
    check_engines(config)
    if rollout.sampler != "workers":
        unread = [f"rollout.{name}" for name in ("workers", "ray", "trace") if getattr(rollout, name)]
        unread += ["max_staleness"] if config.rl.max_staleness is not None else []
        if unread:
            raise UserError(f"config.rl.{unread[0]} is of the sampler workers; set config.rl.rollout.sampler to it")
        return
    ahead = rollout.look_ahead - 1
    if config.rl.max_staleness is not None and config.rl.max_staleness < ahead:
        raise UserError(
            f"with config.rl.rollout.look_ahead={rollout.look_ahead} groups are {ahead} versions old when their turn "
            f"comes, and config.rl.max_staleness={config.rl.max_staleness} drops them; set look_ahead to "
            f"{config.rl.max_staleness + 1}, or max_staleness to {ahead}"
        )
    if rollout.token_cap:
        raise UserError(
            "config.rl.rollout.token_cap cuts responses in lockstep; with sampler workers every episode pauses at the "
            "end of an iteration by itself, so set it to 0"
        )
    if rollout.ray and not rollout.workers:
        raise UserError("config.rl.rollout.ray runs workers, and config.rl.rollout.workers is 0; set their number")


def open_workers(
    parts: Parts,
    policy: Engine | EnginePool,
    scorer: Scorer,
    media: MediaReader | None,
    methods: Methods,
    frozen: Mapping[str, FrozenModel],
) -> WorkerSampler:
    """Opens the sampler; ``parts.opened`` closes it before the event loop ends.

    ``policy`` is an engine on the trainer's devices, or those in processes of their own.

    Raises:
        UserError: workers do not start.
    """
    config, rollout = parts.config, parts.config.rl.rollout
    engine = None if isinstance(policy, EnginePool) else policy
    client = policy if isinstance(policy, EnginePool) else parts.make_client(policy)
    roles = clients_of(parts, frozen, None if engine is not None else policy)
    clients = {POLICY: client, **{name: role.client for name, role in roles.items()}}
    for each in clients.values():
        parts.opened.callback(each.stop)
    log = GroupLog(parts.workdir, rollout.samples, parts.identity)
    window = DrawWindow(
        rollout.prompts, rollout.look_ahead * rollout.prompts, rollout.prompts * max(1, config.train.steps)
    )
    failures: list[Callable[[BaseException], None]] = []  # the pool is opened before what it tells
    pool = _open_pool(parts, client, roles, scorer, media, lambda error: [fail(error) for fail in failures])
    trace, probe = IterationTrace(rollout.trace, parts.workdir, client), LagProbe()
    parts.event_loop.run(probe.__aenter__())
    parts.opened.callback(lambda: parts.event_loop.run(probe.__aexit__()))
    shared = config, client, parts.chat, parts.tokenizer, scorer
    episodes = WorkerEpisodes(pool, trace, *shared, media=media, roles=roles)
    admission = _Admitted(config, client)
    sampled_by = client.sampled_by if isinstance(client, EnginePool) else lambda: None
    rollouts = Rollouts(episodes, parts.mixture, window, log, admission.limit, client.check, sampled_by=sampled_by)
    if isinstance(client, EnginePool):
        client.noticed = rollouts.go_on
    admission.follow(lambda: rollouts.running)
    failures.append(rollouts.fail)
    sampler = WorkerSampler(
        parts.run,
        engine,
        clients,
        parts.event_loop,
        probe=probe,
        trace=trace,
        rollouts=rollouts,
        window=window,
        log=log,
        methods=methods,
        episodes=episodes,
        commands=parts.commands,
    )
    parts.opened.callback(lambda: parts.event_loop.run(sampler.close()))
    calm_collector()  # thousands of live episodes are not looked at again and again
    return sampler


class _Admitted:
    """How many episodes may run: the window's, and fewer where the engine's cache bears no more."""

    def __init__(self, config: Config, client: ContinuousClient | EnginePool):
        rollout = config.rl.rollout
        most, slots = rollout.concurrency or rollout.prompts * rollout.samples, rollout.slots
        slots *= max(1, config.rl.engines.start - len(config.rl.roles)) if isinstance(client, EnginePool) else 1
        start = min(most, 2 * slots)  # half of the episodes may be waiting for tools
        self._admission = Admission(start, minimum=1, maximum=most, increase=max(1, slots // 8))
        self._client, self._preemptions, self._looked = client, 0, 0.0
        self._running: Callable[[], int] = lambda: 0

    def follow(self, running: Callable[[], int]) -> None:
        """Sets what counts the episodes that run."""
        self._running = running

    def limit(self) -> int:
        """The limit now."""
        now = asyncio.get_running_loop().time()
        if now - self._looked >= _OBSERVED:
            self._looked, stats = now, self._client.stats()
            preempted = stats.preemptions > self._preemptions
            self._preemptions = stats.preemptions
            self._admission.observe(stats.pages_in_use / max(1, stats.pages), self._running(), preempted)
        return self._admission.limit


def _open_pool(
    parts: Parts,
    client: ContinuousClient | EnginePool,
    roles: Mapping[str, RoleClient],
    scorer: Scorer,
    media: MediaReader | None,
    on_failure: Callable[[BaseException], Any],
) -> Pool:
    config, rollout = parts.config, parts.config.rl.rollout
    if not rollout.workers:
        choices = {"images": config.rl.images, "hosts": config.rl.hosts}
        environments = EnvironmentMaker(rollout.sandbox, repositories=None, **choices)
        options = {"seed": config.train.seed, "scorer": scorer, "media": media, "roles": roles}
        options["subagents"] = client.subagents if isinstance(client, EnginePool) else None
        masks_long = rollout.long_prompts == "skip"
        shared = client, parts.chat, parts.tokenizer, environments
        return LocalPool(JudgedEpisodes(*shared, masks_long=masks_long, **options))
    folder = parts.workdir / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)  # the job in it has the engines' keys
    launcher = RayLauncher(rollout.ray) if rollout.ray else LocalLauncher()
    sockets = parts.opened.enter_context(short_folder(parts.workdir / ".sockets-workers"))
    subagents = [(SUBAGENTS, client.subagents, media)] if isinstance(client, EnginePool) else []
    engines = {
        name: parts.opened.enter_context(_served(parts, client, served, _place(launcher, sockets / name), reader))
        for name, served, reader in [
            (POLICY, client, media),
            *subagents,
            *((name, role.client, None) for name, role in roles.items()),
        ]
    }
    most = rollout.concurrency or rollout.prompts * rollout.samples
    pool = LeasedPool(
        folder,
        on_failure,
        runner=RUNNER,
        options=_worker_options(parts, engines, roles, media),
        workers=rollout.workers,
        capacity=2 * -(-most // rollout.workers),  # evaluations beside the window
        launcher=launcher,
    )
    parts.opened.enter_context(_hired(parts, pool))
    return pool


def _worker_options(
    parts: Parts, engines: Mapping[str, EngineAddress], roles: Mapping[str, RoleClient], media: MediaReader | None
) -> dict[str, Any]:
    config, rl = parts.config, parts.config.rl
    scoring = dataclasses.asdict(rl.scoring) | {"workers": -(-rl.scoring.workers // rl.rollout.workers)}
    critic, judge = rl.critic, None
    if critic.judge == "endpoint":
        limits = {"timeout": critic.timeout, "attempts": 1 + rl.scoring.retries}
        judge = {"url": critic.url, "model": critic.model, "api_key_variable": critic.api_key_variable, **limits}
    tokenizer = str((parts.workdir / "tokenizer").absolute())
    images = {"maker": "k2jax.rl.inputs:images_of_run", "config": to_json(config), "tokenizer": tokenizer}
    return {
        "tokenizer": tokenizer,
        "chat": config.data.chat_format,
        "seed": config.train.seed,
        "engines": [engines[POLICY].text],
        "subagents": engines[SUBAGENTS].text if SUBAGENTS in engines else "",
        "roles": {
            name: {"engine": engines[name].text, "sampling": dataclasses.asdict(role.sampling)}
            for name, role in roles.items()
        },
        "sandbox": rl.rollout.sandbox,
        "images": rl.images,
        "hosts": rl.hosts,
        "scoring": scoring,
        "judge": judge,
        "media": None if media is None else images,
        "masks_long": rl.rollout.long_prompts == "skip",
        "added": added_here(),
    }


def _place(launcher: LocalLauncher | RayLauncher, path: Path) -> tuple[socket.socket | Path, EngineAddress]:
    """Where workers of a launcher can reach an engine: a Unix socket on this machine, TCP from others."""
    if isinstance(launcher, RayLauncher):
        return tcp_listener(launcher.host)
    return path, EngineAddress(str(path))


@contextlib.contextmanager
def _served(
    parts: Parts,
    counted: ContinuousClient | EnginePool,
    client: Client,
    place: tuple[socket.socket | Path, EngineAddress],
    media: MediaReader | None,
) -> Iterator[EngineAddress]:
    """Serves the engine to workers on the run's event loop."""
    listener, address = place

    def load() -> EngineLoad:
        stats = counted.stats()
        return EngineLoad(stats.pages_in_use / max(1, stats.pages), stats.running, stats.waiting, stats.preemptions)

    server = EngineServer(client, load, media=None if media is None else placed_chunk, key=address.key)

    async def start() -> asyncio.Task[None]:
        listening = asyncio.Event()
        serving = asyncio.ensure_future(server.serve(listener, listening.set))
        await listening.wait()
        return serving

    async def stop() -> None:
        serving.cancel()

    serving = parts.event_loop.run(start())
    try:
        yield address
    finally:
        parts.event_loop.run(stop())


@contextlib.contextmanager
def _hired(parts: Parts, pool: LeasedPool) -> Iterator[None]:
    """The pool's workers, for a ``with`` block."""

    async def start() -> None:
        await pool.__aenter__()
        await pool.hire()

    parts.event_loop.run(start())
    try:
        yield
    finally:
        parts.event_loop.run(pool.__aexit__())
