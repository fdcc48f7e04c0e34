"""An engine that joins a run: it takes each version of the run's weights, and answers what the run asks.

See ``k2jax.rl.engines.engine_pool`` for the other end. The run may be killed and started again: the engine then waits
for it, and ends when the run does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
import socket
import sys

import jax

from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_states import EngineState
from k2jax.agents.collect.event_loop import calm_collector
from k2jax.agents.collect.run_member import RunMember
from k2jax.agents.collect.wire import FrameConnection
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
from k2jax.rl.broadcast.peers import parse_address, read_key
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.store_source import KEY_FILE
from k2jax.rl.engines.run_record import RunRecord, this_machine
from k2jax.rl.sync.checkpoint_engine import store_folder
from k2jax.serve.following import StoredWeights, WeightFollower, WeightSource
from k2jax.text.constrained import Grammars
from k2jax.text.tokenizer import load_tokenizer

POLL = 0.1
"""Time between two looks for a run [s]."""
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
    say(f"waiting for the weights of {workdir}")
    while (record := await _found(workdir)) is None:
        await asyncio.sleep(POLL)
    first, loop = record, asyncio.get_running_loop()
    served = await asyncio.to_thread(lambda: _Served(make_engine(workdir, first), first, workdir, loop))
    calm_collector()
    while record is not None and await served.member.serve(_address(record, workdir)):
        say(f"lost the run of {workdir}; waiting for it to go on")
        record = await _found(workdir)
        if record is not None and record.weights != first.weights:
            raise UserError(f"the run of {workdir} gives its weights at other addresses now; start this engine again")
    say(f"the run of {workdir} has ended")


async def _found(workdir: Path) -> RunRecord | None:
    """The record of the run of a workdir, once somebody listens there; None where there is no run."""
    while (record := RunRecord.read(workdir)) is not None:
        if record.socket and await _is_there(_address(record, workdir)):
            return record
        await asyncio.sleep(POLL)
    return None


def make_engine(workdir: Path, record: RunRecord) -> Engine:
    """An engine of the policy of a run, which waits for its weights."""
    config = run_config(workdir)
    specs, rollout, dtype = multimodal_specs(config.model), config.rl.rollout, jax.numpy.dtype(record.dtype)
    alone = rollout.data * rollout.expert == 1
    engine = Engine(
        config.model,
        jax.eval_shape(lambda params: cast_params(params, specs, dtype), abstract(specs)),
        slots=rollout.slots,
        max_length=rollout.max_length,
        version=-1,
        mesh=None if alone else make_engine_mesh(rollout.data, rollout.expert),
    )
    engine.grammars = Grammars(lambda: load_tokenizer(workdir / "tokenizer"), config.model.vocab)
    return engine


def _address(record: RunRecord, workdir: Path) -> EngineAddress:
    """Where the run takes this machine's engines."""
    if record.machine == this_machine():
        return EngineAddress.parse(record.socket)
    if not record.listen:
        raise UserError(f"the run of {workdir} takes engines of its own machine alone; set config.rl.engines.listen")
    return EngineAddress.parse(record.listen)


def _source(record: RunRecord, workdir: Path, engine: Engine) -> WeightSource:
    """Where the weights come from: this machine's memory, where it has all of them, or the processes of the run."""
    if record.machine == this_machine() and len(record.weights) < 2:
        return StoredWeights(store_folder(workdir))
    addresses = [parse_address(text, "weights") for text in record.weights]
    return ReceivedWeights(addresses, read_key(workdir / KEY_FILE), engine.weights, say)


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
    """The engine at work, and the source that it follows."""

    def __init__(self, engine: Engine, record: RunRecord, workdir: Path, loop: asyncio.AbstractEventLoop):
        source = _source(record, workdir, engine)
        version, leaves = source.load()
        engine.update_params(leaves, version)
        self._taken, self._loop = (version, _digest(engine)), loop
        self._worker = Worker(engine, rest=REST_ON_CPU if _shares_processors() else 0.0)
        media = placed_chunk if engine.weights.has_vision else None
        name, version_of = f"{socket.gethostname()}:{os.getpid()}", lambda: self._worker.engine.version
        self.member = RunMember(name, EngineClient(self._worker), self._state, version_of, media)
        self._follower = WeightFollower(self._worker, source, say, self._on_taken, WEIGHTS_SECONDS)

    def _on_taken(self, version: int) -> None:
        """Called on the follower's thread while the engine is held, so that the run learns of it before any token."""
        taken = version, _digest(self._worker.engine)

        def tell() -> None:
            self._taken = taken
            self.member.tell()

        self._loop.call_soon_threadsafe(tell)

    def _state(self) -> EngineState:
        if self._worker.failed is not None:
            raise UserError(f"the engine has failed: {self._worker.failed!r}")
        return EngineState(*self._taken, self._worker.busy_seconds, dataclasses.asdict(self._worker.stats()))


def _shares_processors() -> bool:
    """Whether the engine computes where sandboxes and verifiers may: on a CPU, of which it was not given a part."""
    return jax.default_backend() == "cpu" and len(os.sched_getaffinity(0)) == os.cpu_count()


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
