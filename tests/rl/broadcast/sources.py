"""Weights of any names, shapes and dtypes, and those who give and take them, for the tests."""

import contextlib
import socket
import threading

import jax
import numpy as np

from k2jax.errors import UserError
from k2jax.rl.broadcast.holdings import EngineVersion
from k2jax.rl.broadcast.pieces import Manifest, Piece
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.weight_server import WeightServer

KEY = bytes(range(32))
ANYWHERE = ("127.0.0.1", 0)


class Arrays:
    """In the place of an engine's weights: arrays by name."""

    def __init__(self, arrays):
        self.arrays = dict(arrays)
        self._sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def check(self, leaves):
        leaves = list(leaves)
        if {name: leaf.shape for name, leaf in leaves} != {name: array.shape for name, array in self.arrays.items()}:
            raise UserError("they are the weights of another model")
        return leaves

    def target(self, name):
        array = self.arrays[name]
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self._sharding)

    def names(self):
        return iter(self.arrays)

    def leaves(self):
        return iter(self.arrays.items())

    def take(self, leaves, seconds=0.0):
        """As an engine's update."""
        for name, array in leaves:
            self.arrays[name] = np.array(array, self.arrays[name].dtype)
            threading.Event().wait(seconds)

    def empty(self):
        """Others of the same names, shapes and dtypes."""
        return Arrays({name: np.full_like(array, 1) for name, array in self.arrays.items()})

    def same(self, other):
        return all(
            array.dtype == other.arrays[name].dtype and array.tobytes() == other.arrays[name].tobytes()
            for name, array in self.arrays.items()
        )


def drawn(seed, dtype=np.float32, shape=(16, 64), count=8):
    rng = np.random.default_rng(seed)
    return Arrays({f"w{i}": rng.standard_normal(shape).astype(dtype) for i in range(count)})


def manifest_of(weights, identity="first", version=1, chunk=1000):
    """What it consists of, every array in one piece."""
    pieces = [Piece(name, a.dtype.name, a.shape, (0,) * a.ndim, a.shape) for name, a in weights.arrays.items()]
    return Manifest(identity, version, tuple(pieces), chunk)


@contextlib.contextmanager
def source(weights, say=print, **values):
    """A server that gives weights."""
    server = WeightServer(ANYWHERE, KEY, say)
    server.offer(EngineVersion(manifest_of(weights, **values), weights))
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def receivers(addresses, *weights, say=print):
    """Who takes them."""
    made = [ReceivedWeights(addresses, KEY, each, say) for each in weights]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def begin_chain(server, count):
    """Waits until so many have asked for their place in a chain, which then begins."""
    rounds = server._rounds
    with rounds._changed:
        assert rounds._changed.wait_for(
            lambda: any(len(each.members) == count for each in rounds._gathering.values()), 60
        )
        [gathered] = rounds._gathering.values()
        gathered.until = 0.0
        rounds._changed.notify_all()


def take_all(made, weights, seconds=0.0, failures=None):
    """All receivers load at the same time."""

    def take(receiver, mine):
        try:
            mine.take(receiver.load()[1], seconds)
        except UserError as error:
            if failures is None:
                raise
            failures.append(str(error))

    threads = [threading.Thread(target=take, args=pair) for pair in zip(made, weights, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Proxy:
    """Passes connections on; what comes back is what ``change(connection, bytes before, data)`` makes of it."""

    def __init__(self, address, change):
        self._target, self._change = address, change
        self._listener = socket.create_server(ANYWHERE)
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        self._count, self._open = 0, []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            answered = socket.create_connection(self._target)
            self._open += [caller, answered]
            self._count += 1
            for one, other, number in ((caller, answered, None), (answered, caller, self._count)):
                threading.Thread(target=self._pass, args=(one, other, number), daemon=True).start()

    def _pass(self, one, other, number):
        passed = 0
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if number is not None:
                    data = self._change(number, passed, data)
                passed += len(data)
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()
        for each in self._open:
            each.close()
