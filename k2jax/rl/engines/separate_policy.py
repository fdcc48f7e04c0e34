"""The policy whose engines are processes of their own: weights go to a store, from which every engine takes them."""

from __future__ import annotations

from collections.abc import Callable
import functools
import secrets
import socket
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from k2jax import processes
from k2jax.agents.collect.engine_address import KEY_BYTES, EngineAddress
from k2jax.errors import UserError
from k2jax.files.short_folder import short_folder
from k2jax.inference.checksum import digest
from k2jax.inference.weights import named_leaves
from k2jax.model import cast_params
from k2jax.parallel.resharding import logical_partition
from k2jax.params import abstract, named_specs
from k2jax.rl.broadcast.peers import Address, parse_address, text_of
from k2jax.rl.broadcast.store_source import given_store
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.engines.own_engines import OwnEngines
from k2jax.rl.engines.role_engines import RoleEngines
from k2jax.rl.engines.run_record import RunRecord, remove_record, this_machine
from k2jax.rl.methods.base import Parts
from k2jax.rl.policy import Policy
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from k2jax.rl.sync.weight_sync import StaleWeightsError, SyncStats, WeightSync, rollout_dtype, sums_by_name
from k2jax.text.constrained import Grammars
from k2jax.train.program import Program
from k2jax.train.run import say
from k2jax.train.signals import StopAskedError
from k2jax.trajectory.steps import POLICY

_LONGEST_ADDRESS = 300  # bytes


def open_policy(parts: Parts) -> Policy | PublishedPolicy:
    """The policy of a run, whose engines are where ``rl.engines.placement`` says."""
    if parts.config.rl.engines.placement == "colocated":
        policy = Policy(parts.program, parts.workdir, parts.opened)
        policy.engine.grammars = Grammars(parts.tokenizer, parts.config.model.vocab)
        return policy
    return PublishedPolicy(parts) if parts.commands.follows else SeparatePolicy(parts)


class PublishedPolicy:
    """Publishes what this process has of the trainer's weights, for engines in processes of their own; see ``Policy``.

    It is the whole policy of a process that follows another one, in which the engines join.

    Args:
        parts: of the run; ``opened`` ends what is begun here.
        announce: is told number and checksum of a version before an engine can find it.

    Attributes:
        pool: the engines; None in a process in which none joins.
        addresses: where every process of the run gives its weights to engines of other machines; empty where none does.

    Raises:
        UserError: another run publishes under the same workdir, or the address to listen on is taken.
    """

    pool: EnginePool | None = None

    def __init__(self, parts: Parts, announce: Callable[[int, str], None] = lambda version, digest: None):
        several, listen = processes.count() > 1, parts.config.rl.engines.listen
        folder = store_folder(parts.workdir, processes.index() if several else None)
        store = CheckpointEngine(folder, keeps_before=several)
        self._sync = StoreSync(parts.program, store, announce)
        parts.opened.push(lambda kind, *_: store.remove() if kind is None else None)
        self.addresses: tuple[str, ...] = ()
        if listen:
            place = weights_address(listen, processes.index())
            self.addresses = _gathered(text_of(parts.opened.enter_context(given_store(place, parts.workdir, folder))))
        self._record: dict[str, float] = {}

    def check(self, version: int) -> None:
        """Raises StaleWeightsError where another version than this one was published last."""
        self._sync.check(version)

    def push(self, params: Any, version: int) -> None:
        """Publishes the trainer's weights."""
        synced = self._sync.push(params, version)
        speed = synced.bytes / synced.seconds / 1e9
        self._record = {"sync_seconds": synced.seconds, "sync_gb_per_second": speed}

    def record(self) -> dict[str, float]:
        """Metrics of the last ``push``."""
        return self._record


class SeparatePolicy(PublishedPolicy):
    """Publishes the trainer's weights, and has the engines that take them; see ``Policy``.

    Args:
        parts: of the run; ``opened`` ends what is begun here.

    Attributes:
        pool: the engines.

    Raises:
        UserError: as of ``PublishedPolicy``, or engines that the run is to start would need its devices.
    """

    def __init__(self, parts: Parts):
        self._parts, engines = parts, parts.config.rl.engines
        platform = parts.program.layout.platform
        if engines.start and platform != "cpu":
            raise UserError(
                f"config.rl.engines.start {engines.start} engines would need the {platform} devices that the trainer "
                "has; set it to 0, and start engines on other devices with python -m k2jax.rollout engine "
                f"--follow={parts.workdir}"
            )
        RunRecord(this_machine()).write(parts.workdir)  # in place of that of a run that was killed
        self._listener, self._address = _listener(engines.listen)
        command = f"python -m k2jax.rollout engine --follow={parts.workdir}"
        advice = f"its own are starting, and {command} adds one" if engines.start else f"start it with {command}"
        rollout = parts.config.rl.rollout
        self.pool = EnginePool(rollout.max_length, rollout.slots, say, advice)
        roles = parts.config.rl.roles
        for name in sorted(roles):
            more = f"{command} --role={name} adds one"
            self.pool.beside[name] = EnginePool(rollout.max_length, roles[name].slots, say, more, name)
        self._engines = RoleEngines({POLICY: self.pool, **self.pool.beside}, say)
        super().__init__(parts, self.pool.publish)
        self._sockets = parts.opened.enter_context(short_folder(parts.workdir / ".sockets-engines"))
        own = OwnEngines(parts.workdir, engines.start, say, sorted(roles) if engines.start else ())
        parts.opened.callback(own.close)
        self.pool.watched = functools.partial(self._look, own)
        for pool in (self.pool, *self.pool.beside.values()):
            parts.event_loop.run(pool.watch())
        # Of a run that an error ends, as the loss of a process is one, engines wait for the next start.
        parts.opened.push(lambda kind, *_: self._say_the_end() if kind is None else None)
        self._has_record = False

    def push(self, params: Any, version: int) -> None:
        """Publishes the trainer's weights; with the first of them engines may join."""
        super().push(params, version)
        if not self._has_record:
            self._has_record = True
            path = self._sockets / "engines"
            self._parts.event_loop.run(self.pool.open(path, self._listener, self._address.key))
            dtype = jax.numpy.dtype(rollout_dtype(self._parts.program)).name
            listen = self._address.text if self._listener is not None else ""
            RunRecord(this_machine(), str(path), listen, dtype, self.addresses).write(self._parts.workdir)

    def record(self) -> dict[str, float]:
        """Metrics of the last ``push``, and the engines of each frozen role."""
        counts = {f"engines/{name}": float(len(pool.engines)) for name, pool in self.pool.beside.items()}
        return super().record() | counts

    def _say_the_end(self) -> None:
        remove_record(self._parts.workdir, is_done=not self._parts.run.stop_asked)
        for pool in (self.pool, *self.pool.beside.values()):
            self._parts.event_loop.run(pool.close())

    def _look(self, own: OwnEngines) -> None:
        try:
            own.look(self.pool.version)
            self._engines.look()
            if self._parts.run.stop_asked and not self.pool.engines:  # an iteration would never end
                self.pool.fail(StopAskedError())
        except UserError as error:
            self.pool.fail(error)


def weights_address(listen: str, process: int) -> Address:
    """Where a process of a run gives its weights: at one of the ports behind that at which engines join.

    Args:
        listen: HOST:PORT of ``rl.engines.listen``, by which others reach the first process; port 0 is any.
        process: its number; each but the first listens where it reaches the first one from.
    """
    host, port = parse_address(listen, "config.rl.engines.listen")
    if process:
        family, kind, _, _, place = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # of a datagram socket: nothing is sent
            host = probe.getsockname()[0]
    return host, port and port + 1 + process


def _gathered(text: str) -> tuple[str, ...]:
    """What every process says, in their order."""
    if processes.count() == 1:
        return (text,)
    said = np.frombuffer(text.encode().ljust(_LONGEST_ADDRESS), np.uint8)
    return tuple(bytes(each).decode().strip() for each in multihost_utils.process_allgather(said))


def _listener(listen: str) -> tuple[socket.socket | None, EngineAddress]:
    """Where engines of other machines join: HOST:PORT, with a new key; nowhere by default."""
    if not listen:
        return None, EngineAddress()
    host, _, port = listen.rpartition(":")
    try:
        listener = socket.create_server((host, int(port)), backlog=512)
    except OSError as error:
        raise UserError(f"config.rl.engines.listen {listen}: {error.strerror or error}; choose another") from None
    return listener, EngineAddress(host=host, port=listener.getsockname()[1], key=secrets.token_hex(KEY_BYTES))


class _Written:
    """Stands where ``WeightSync`` has an engine: what a weight, or one of its layers, is when it is published."""

    def __init__(self, program: Program):
        layout, dtype = program.layout, rollout_dtype(program)
        self.weights = self
        cast = jax.eval_shape(lambda params: cast_params(params, layout.logical, dtype), abstract(layout.logical))
        self._cast = dict(named_leaves(cast))
        self._placed = dict(named_leaves(layout.shardings(logical_partition(layout))))
        self._layered = {name for name, spec in named_specs(layout.logical) if spec.layer_axes}

    def target(self, name: str) -> jax.ShapeDtypeStruct:
        """See ``EngineWeights.target``."""
        weight, placed, layer = self._cast[name], self._placed[name], name in self._layered
        sharding = NamedSharding(placed.mesh, PartitionSpec(*placed.spec[layer:]))
        return jax.ShapeDtypeStruct(weight.shape[layer:], weight.dtype, sharding=sharding)


class StoreSync(WeightSync):
    """Writes the trainer's weights to a store, bucket by bucket, in the dtype of engines.

    Beside the trainer's weights, the devices hold one bucket at a time, sharded as these are, and the host three arrays
    beside the store.

    Args:
        program: of the training.
        store: of the versions.
        announce: is told number and checksum of a version before an engine can find it.
    """

    def __init__(self, program: Program, store: CheckpointEngine, announce: Callable[[int, str], None]):
        super().__init__(program, _Written(program))
        self._store, self._announce = store, announce

    def push(self, params: Any, version: int) -> SyncStats:
        """See ``WeightSync``."""
        began, sent = time.perf_counter(), []
        self._version, sums = None, ""

        def leaves():
            nonlocal sums
            yield from self._leaves(dict(named_leaves(params)), sent)
            sums = digest(sums_by_name(sent))
            self._announce(version, sums)

        written = self._store.publish(leaves(), version)
        self._version = version
        return SyncStats(time.perf_counter() - began, written.bytes, sums, version)

    def check(self, version: int | None = None) -> None:
        """Checks that the version that was published last is the trainer's; engines are checked when they say theirs.

        Raises:
            StaleWeightsError: it is not.
        """
        if self._version is None or self._version != version:
            raise StaleWeightsError(
                f"version {self._version} of the weights was published last, and the trainer is at {version}"
            )
