"""An engine that joins a run: it takes each version of the run's weights, and answers what the run asks.

See ``k2jax.rl.engines.engine_pool`` for the other end. The run may be killed and started again: the engine then waits
for it, and ends when the run does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import dataclasses
import os
from pathlib import Path
import socket
import sys
from typing import Any

import jax

from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_socket import EngineAnswers
from k2jax.agents.collect.engine_states import EngineJoin, EngineState
from k2jax.agents.collect.event_loop import calm_collector
from k2jax.agents.collect.wire import VERSION, FrameConnection, other_version, version_of
from k2jax.agents.collect.wire_messages import EngineMessage
from k2jax.checkpoint import run_config
from k2jax.errors import UserError
from k2jax.inference import Engine, Worker
from k2jax.inference.checksum import digest
from k2jax.inference.client import EngineClient
from k2jax.inference.continuous import REST_ON_CPU
from k2jax.inference.media import placed_chunk
from k2jax.inference.mesh import make_engine_mesh
from k2jax.model import cast_params
from k2jax.model.vision import multimodal_specs
from k2jax.params import abstract
from k2jax.rl.engines.run_record import RunRecord, this_machine
from k2jax.rl.sync.checkpoint_engine import store_folder
from k2jax.serve.following import StoredWeights, WeightFollower, WeightSource

POLL = 0.1
"""Time between two looks for a run [s]."""
STATE_SECONDS = 0.5
"""Time between two messages about what the engine does [s]."""
WEIGHTS_SECONDS = 0.05
"""Time between two looks for a version of the weights [s]."""


def say(text: str) -> None:
    """Prints a line."""
    print(text, flush=True)


async def follow(workdir: Path, ends_with_input: bool = False) -> None:
    """Serves the run of a workdir until the run ends.

    Args:
        workdir: of the run; it may not be there yet.
        ends_with_input: end when standard input ends, as the process does that has started this one.

    Raises:
        UserError: the run is one that this engine cannot serve.
    """
    if ends_with_input:
        asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 1) or os._exit(0))
    record = RunRecord.read(workdir)
    if record is None:
        say(f"waiting for the weights of {workdir}")
        while record is None:
            await asyncio.sleep(POLL)
            record = RunRecord.read(workdir)
    address, source = _address(record, workdir), _source(record, workdir)
    served = await asyncio.to_thread(_Served, make_engine(workdir, record), source)
    calm_collector()
    while await served.serve(address):
        say(f"lost the run of {workdir}; waiting for it to go on")
        while (record := RunRecord.read(workdir)) is not None:
            address = _address(record, workdir)
            if await _is_there(address):
                break
            await asyncio.sleep(POLL)
        if record is None:
            break
    say(f"the run of {workdir} has ended")


def make_engine(workdir: Path, record: RunRecord) -> Engine:
    """An engine of the policy of a run, which waits for its weights."""
    config = run_config(workdir)
    specs, rollout, dtype = multimodal_specs(config.model), config.rl.rollout, jax.numpy.dtype(record.dtype)
    alone = rollout.data * rollout.expert == 1
    return Engine(
        config.model,
        jax.eval_shape(lambda params: cast_params(params, specs, dtype), abstract(specs)),
        slots=rollout.slots,
        max_length=rollout.max_length,
        version=-1,
        mesh=None if alone else make_engine_mesh(rollout.data, rollout.expert),
    )


def _address(record: RunRecord, workdir: Path) -> EngineAddress:
    """Where the run takes this machine's engines."""
    if record.machine == this_machine():
        return EngineAddress.parse(record.socket)
    if not record.listen:
        raise UserError(f"the run of {workdir} takes engines of its own machine alone; set config.rl.engines.listen")
    return EngineAddress.parse(record.listen)


def _source(record: RunRecord, workdir: Path) -> WeightSource:
    """Where the weights come from."""
    if record.machine == this_machine():
        return StoredWeights(store_folder(workdir))
    raise UserError(f"the weights of {workdir} are in the memory of another machine; start this engine there")


async def _is_there(address: EngineAddress) -> bool:
    """Whether a run listens."""
    connection = FrameConnection(lambda *frame: None, lambda: None)
    try:
        await address.connect(connection)
    except OSError:
        return False
    connection.abort()
    return True


class _Served:
    """The engine at work, over one connection after another."""

    def __init__(self, engine: Engine, source: WeightSource):
        version, leaves = source.load()
        engine.update_params(leaves, version)
        self._digest = version, _digest(engine)
        self._worker = Worker(engine, rest=REST_ON_CPU if jax.default_backend() == "cpu" else 0.0)
        self._client = EngineClient(self._worker)
        self._media = placed_chunk if engine.weights.has_vision else None
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: Callable[[], None] = lambda: None
        self._follower = WeightFollower(self._worker, source, say, self._on_taken, WEIGHTS_SECONDS)

    async def serve(self, address: EngineAddress) -> bool:
        """Answers until the run has ended or is lost; returns whether it is lost.

        Raises:
            UserError: the run speaks another version of the wire, or the engine has failed.
        """
        self._loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        answers = EngineAnswers(self._client, self._media, lambda: self._worker.engine.version)

        def end(lost: bool, error: Exception | None = None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(lost)
            else:
                done.set_exception(error)

        def on_frame(kind: int, body: bytes) -> None:
            if kind == EngineMessage.HELLO and version_of(body) != VERSION:
                end(False, UserError(other_version("the run", version_of(body))))
            elif kind == EngineMessage.HELLO:
                connection.send(EngineMessage.JOIN, EngineJoin(self._name).pack())
                self._changed = lambda: connection.send(EngineMessage.STATE, self._state().pack())
                self._changed()
            elif kind == EngineMessage.RUN_ENDED:
                end(False)
            else:
                answers.on_frame(kind, body)

        answers.connection = connection = FrameConnection(on_frame, lambda: end(True))
        try:
            await address.connect(connection)
        except OSError:
            return True
        try:
            while not done.done():
                await asyncio.wait([done], timeout=STATE_SECONDS)
                self._changed()
                if self._worker.failed is not None:
                    raise UserError(f"the engine has failed: {self._worker.failed!r}")
            return done.result()
        finally:
            self._changed = lambda: None
            answers.cancel()
            connection.abort()

    def _on_taken(self, version: int) -> None:
        """Called on the follower's thread while the engine is held, so that the run learns of it before any token."""
        taken = version, _digest(self._worker.engine)

        def tell() -> None:
            self._digest = taken
            self._changed()

        if self._loop is None:
            self._digest = taken
        else:
            self._loop.call_soon_threadsafe(tell)

    def _state(self) -> EngineState:
        counts: dict[str, Any] = dataclasses.asdict(self._worker.stats())
        return EngineState(*self._digest, self._worker.busy_seconds, counts)


def _digest(engine: Engine) -> str:
    """Of the weights that an engine holds; of those whose copies differ one that no run has published."""
    sums = engine.weights.checksums()
    return digest({name: next(iter(each)) if len(each) == 1 else 0 for name, each in sums.items()})


def main(workdir: Path, ends_with_input: bool) -> None:
    """Runs an engine until its run ends."""
    try:
        asyncio.run(follow(workdir, ends_with_input))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        os._exit(2)
    os._exit(0)  # threads of jax may be at work
