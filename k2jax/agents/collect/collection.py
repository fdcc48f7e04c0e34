"""A collection as the command runs it: tasks of a config, an engine or a server, and what comes of them in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import os
from pathlib import Path
import subprocess
import tempfile
from typing import Any

from k2jax.agents.collect.admission import Admission, EngineLoads
from k2jax.agents.collect.engine_address import EngineAddress, tcp_listener
from k2jax.agents.collect.engine_start import start_engine
from k2jax.agents.collect.journal import Emission, read_journal, stored_trajectory
from k2jax.agents.collect.launchers import RayLauncher
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.monitoring import ChromeTrace
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.agents.task import Task
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import TrajectoryStore
from k2jax.trajectory.store import FOLDER

RUNNER = "k2jax.agents.collect.episodes:EpisodeRunner"
MEDIA_READER = "k2jax.serve.media_readers:checkpoint_reader"
_IDENTITY = "collection.json"


@dataclasses.dataclass(frozen=True)
class AnswerSource:
    """Where answers come from: a checkpoint, or a server.

    Attributes:
        checkpoint: checkpoint argument, or empty.
        url: of a server without ``/v1``, or empty.
        model: the server's name for its model.
    """

    checkpoint: str = ""
    url: str = ""
    model: str = ""


class Collection:
    """The tasks of a config and their samples in a folder.

    Args:
        config: ``rl`` says how tasks are sampled and judged, ``data.chat_format`` the format of conversations.
        folder: of the collection.
        source: where answers come from.
        tokenizer: its vocabulary; the folder keeps it.
        samples: of each task.
        workers: processes.
        capacity: episodes that a worker runs at a time.
        engines: processes with an engine of the checkpoint each; requests go where most of their prompt is cached.
        deterministic: engines answer one request at a time, so that no answer depends on others, and as many episodes
            run at a time as workers hold; otherwise as many as the engines' caches bear.
        media: whether the checkpoint's model reads images, which tasks may then show it.
        ray: address of the Ray cluster whose nodes run the workers, see ``RayLauncher``; empty for this machine.

    Raises:
        UserError: the folder has another collection.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        source: AnswerSource,
        tokenizer: Tokenizer,
        *,
        samples: int,
        workers: int,
        capacity: int,
        engines: int = 1,
        deterministic: bool = False,
        media: bool = False,
        ray: str = "",
    ):
        self._deterministic, self._engines, self._ray = deterministic, engines, ray
        self._media = media
        self._config, self._folder, self._source = config, folder, source
        self._samples, self._workers, self._capacity = samples, workers, capacity
        self._tokenizer = folder.absolute() / "tokenizer"  # actors of Ray have another working directory
        self._sampling = {
            name: {key: getattr(task, key) for key in ("max_tokens", "temperature", "top_p", "top_k")}
            for name, task in config.rl.tasks.items()
        }
        self._check_identity(tokenizer)

    def prepare(self, tasks: list[tuple[str, Task]]) -> int:
        """Writes the tasks, each with its class; returns the number of episodes."""
        write_tasks(self._folder, tasks)
        return len(tasks) * self._samples

    async def run(
        self,
        report: Callable[[Emission], None],
        *,
        opened_manager: Callable[[RolloutManager], None] = lambda manager: None,
        trace: ChromeTrace | None = None,
    ) -> None:
        """Runs what has not ended yet.

        Args:
            report: is told of every end.
            opened_manager: is given the manager before it begins.
            trace: of leases, or None.

        Raises:
            UserError: a mistake in the tasks, or the engine or the server fails for good.
        """
        async with contextlib.AsyncExitStack() as opened:
            options, engines = self._options(), []
            launcher = RayLauncher(self._ray) if self._ray else None
            if self._source.checkpoint:
                engines = [opened.enter_context(self._engine(launcher)) for _ in range(self._engines)]
                options["engines"] = [address.text for address, _ in engines]
            else:
                options |= {"url": self._source.url, "model": self._source.model}
            manager = await opened.enter_async_context(
                RolloutManager(
                    self._folder,
                    runner=RUNNER,
                    options=options,
                    workers=self._workers,
                    capacity=self._capacity,
                    admission=self._admission(),
                    launcher=launcher,
                    trace=trace,
                )
            )
            opened_manager(manager)
            for _, engine in engines:
                opened.callback(asyncio.ensure_future(_watch(engine, manager)).cancel)
            if engines and not self._deterministic:
                await opened.enter_async_context(EngineLoads(options["engines"], manager.observe))
            async for emission in manager.collect(queued_samples(self._folder, self._samples)):
                report(emission)

    def emissions(self) -> list[Emission]:
        """The ends so far, those of earlier processes too."""
        return read_journal(self._folder)

    def write_trajectories(self) -> Path:
        """Stores the trajectories in order, as iteration 0 of a run, where ``k2jax.trajectories`` finds them."""
        places = sorted((each.key, each.place) for each in self.emissions() if each.place is not None)
        store = TrajectoryStore(self._folder / FOLDER)
        return store.write(0, (stored_trajectory(self._folder, place) for _, place in places))

    def _options(self) -> dict[str, Any]:
        rl = self._config.rl
        media = {"maker": MEDIA_READER, "checkpoint": self._source.checkpoint} if self._media else None
        return {
            "tokenizer": str(self._tokenizer),
            "chat": self._config.data.chat_format,
            "seed": self._config.train.seed,
            "sampling": self._sampling,
            "token_cap": rl.rollout.token_cap,
            "sandbox": rl.rollout.sandbox,
            "images": rl.images,
            "hosts": rl.hosts,
            "scoring": dataclasses.asdict(rl.scoring),
            "media": media,
        }

    def _admission(self) -> Admission | None:
        """Follows the caches of engines; a deterministic collection follows no load, and of a server none is known."""
        maximum = self._workers * self._capacity
        if self._deterministic or not self._source.checkpoint or maximum < 2 * self._engines:
            return None
        slots = self._config.rl.rollout.slots
        start = min(maximum, 2 * slots * self._engines)  # half of the episodes may be waiting for tools
        return Admission(start, minimum=self._engines, maximum=maximum, increase=max(1, slots // 8))

    def _check_identity(self, tokenizer: Tokenizer) -> None:
        """A folder continues only with the same source, sampling and vocabulary."""
        path = self._folder / _IDENTITY
        identity = dataclasses.asdict(self._source) | {
            "samples": self._samples,
            "sampling": self._sampling,
            "seed": self._config.train.seed,
            "chat": self._config.data.chat_format,
            "tokenizer": tokenizer.fingerprint,
        }
        if path.exists():
            recorded = json.loads(path.read_bytes())
            for name, value in identity.items():
                if recorded.get(name) != value:
                    raise UserError(
                        f"{self._folder} holds a collection with another {name} ({recorded.get(name)}, not {value}); "
                        "give another folder"
                    )
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(self._tokenizer)
        write_atomic(path, json.dumps(identity, indent=1).encode())

    @contextlib.contextmanager
    def _engine(self, launcher: RayLauncher | None) -> Iterator[tuple[EngineAddress, subprocess.Popen[bytes]]]:
        """Address and process of an engine, which ends with this one; workers of a launcher reach it over TCP."""
        rollout = self._config.rl.rollout
        with contextlib.ExitStack() as opened:
            if launcher is None:  # the path of a socket is short
                folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="k2jax-"))
                listener, address = None, EngineAddress(os.path.join(folder, "engine"))
            else:
                listener, address = tcp_listener(launcher.host)
                opened.callback(listener.close)
            record = {
                "checkpoint": self._source.checkpoint,
                "slots": rollout.slots,
                "max_length": rollout.max_length,
                "deterministic": self._deterministic,
                "vision": self._media,
            }
            engine = start_engine(record, address, listener)
            try:
                yield address, engine
            finally:
                engine.stdin.close()
                engine.wait()


async def _watch(engine: subprocess.Popen[bytes], manager: RolloutManager) -> None:
    """Ends the collection when the engine's process ends: workers would mask what they cannot generate."""
    while engine.poll() is None:
        await asyncio.sleep(0.2)
    manager.fail(UserError("the engine's process has ended; its error output says why, and the same command continues"))
