"""Every receiver has the weights bit for bit, whatever they are, and the source sends them once."""

from collections import Counter
import json
import socket
import threading
import time
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.inference.weights import EngineWeights, named_leaves
from k2jax.rl.broadcast import received_weights, rounds, weight_server
from k2jax.rl.broadcast.holdings import StoredVersion
from k2jax.rl.broadcast.pieces import BROKEN, CHUNK_RECORD, StreamPlace
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.shares import plan_of
from k2jax.rl.broadcast.store_source import StoreSource
from k2jax.rl.broadcast.streams import send_version
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from tests.inference.tiny import MLA, weights
from tests.rl.broadcast.sources import (
    ANYWHERE,
    KEY,
    Arrays,
    begin_chain,
    drawn,
    manifest_of,
    receivers,
    source,
    take_all,
)
from tests.train.together import end, free_port, python

DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint16", "int32", "int64", "bool")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 0.1)
    monkeypatch.setattr(weight_server, "CALM_SECONDS", 0.01)


@pytest.fixture
def streams(monkeypatch):
    """Versions that were sent from where they are held, by the port of the sender."""
    sent, send = Counter(), weight_server.send_version

    def counted(peer, *values):
        sent[peer.socket.getsockname()[1]] += 1
        send(peer, *values)

    monkeypatch.setattr(weight_server, "send_version", counted)
    return sent


@st.composite
def sets_of_arrays(draw):
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    named = {}
    for i, (shape, dtype) in enumerate(
        draw(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=6))
    ):
        dtype = jnp.dtype(dtype)
        data = draw(st.binary(min_size=(size := int(np.prod(shape)) * dtype.itemsize), max_size=size))
        data = bytes(byte & 1 for byte in data) if dtype.name == "bool" else data
        array = np.frombuffer(data, dtype).reshape(shape)
        named[f"w{i}" if i % 2 else (f"layers/w{i}", i)] = array
    return named


class Layered(Arrays):
    """Targets are asked for by the name of the weight, whatever the layer."""

    def __init__(self, arrays):
        super().__init__(arrays)
        self._names = {name if isinstance(name, str) else name[0]: name for name in self.arrays}

    def target(self, name):
        return super().target(self._names[name])

    def empty(self):
        return Layered(super().empty().arrays)


class ByLayer(Arrays):
    """Layers of a weight have one target."""

    def target(self, name):
        return super().target(name if name in self.arrays else (name, 0))


@given(sets_of_arrays(), st.integers(1, 40), st.integers(1, 5))
@settings(max_examples=12, deadline=None)
def test_any_arrays_in_any_chunks_arrive_bit_for_bit(arrays, chunk, count):
    held = Layered(arrays)
    taken = [held.empty() for _ in range(count)]
    with source(held, chunk=chunk) as server, receivers([server.address], *taken) as made:
        take_all(made, taken)
    assert all(held.same(each) for each in taken)


def test_receivers_form_a_chain_and_the_source_sends_once(streams, monkeypatch):
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 60.0)
    held = drawn(0)
    taken = [held.empty() for _ in range(4)]
    with source(held) as server, receivers([server.address], *taken) as made:
        beginning = threading.Thread(target=begin_chain, args=(server, 4))
        beginning.start()
        take_all(made, taken)
        beginning.join()
        assert streams == {server.address[1]: 1}
    assert all(held.same(each) for each in taken)


def test_a_late_receiver_takes_them_from_a_neighbour(streams, monkeypatch):
    held, first, late = drawn(0), drawn(1), drawn(2)
    with source(held) as server, receivers([server.address], first, late) as (early, other):
        first.take(early.load()[1])
        monkeypatch.setattr(rounds, "GATHER_SECONDS", 30.0)
        began = time.monotonic()
        late.take(other.load()[1])
        assert time.monotonic() - began < 20  # nobody else is to come
        assert streams.pop(server.address[1]) == 1 and list(streams.values()) == [1]
    assert held.same(late)


def test_processes_of_an_engine_take_the_newest_version_that_all_of_them_find(monkeypatch):
    receiver = ReceivedWeights([("127.0.0.1", 1)], KEY, None, print)
    monkeypatch.setattr(receiver, "_is_alone", lambda: False)
    monkeypatch.setattr(received_weights, "_RETRY_SECONDS", 0.0)
    none, asked = received_weights._NONE, []

    def agreed(mine, *others):
        left = list(others)

        def gathered(own):
            asked.append(list(own))
            return np.stack([own, np.array(left.pop(0), np.int32)])

        monkeypatch.setattr(received_weights.multihost_utils, "process_allgather", gathered)
        monkeypatch.setattr(receiver, "_common", lambda: {number: (f"v{number}",) for number in mine})
        return receiver._agreed()

    assert agreed([6, 5], [5, 4, none]) == (5, ("v5",))
    assert agreed([6], [5, none, none], [7, none, none], [7, 6, none]) == (6, ("v6",))  # the other one is late
    assert len(asked) == 4
    for mine, other in (([6], [none] * 3), ([], [6, 5, none])):
        with pytest.raises(UserError, match="no whole weights at tcp:"):
            agreed(mine, other)
    assert asked[-1] == [none] * 3 and len(asked) == 6


def test_an_engine_with_other_dtypes_gives_nothing_on(streams):
    held, cast, late = drawn(0), drawn(1, np.float16), drawn(2)
    with source(held) as server, receivers([server.address], cast, late) as (early, other):
        for receiver, mine in ((early, cast), (other, late)):
            mine.take(receiver.load()[1])
        assert streams == {server.address[1]: 2}
    assert held.same(late)


def test_two_sources_each_send_what_no_other_sends():
    """Of what both have whole either sends a part."""
    held = drawn(0)
    taken = [held.empty() for _ in range(2)]
    with (
        source(held) as one,
        source(held, identity="second") as other,
        receivers([one.address, other.address], *taken) as made,
    ):
        assert made[0].current() == ("first", "second")
        take_all(made, taken)
        plan = plan_of([manifest_of(held), manifest_of(held)], held)
        assert [sum(end - begin for _, begin, end in spans) for spans in plan.spans] == [4 * 4096] * 2
    assert all(held.same(each) for each in taken)


def test_sources_without_a_version_in_common_have_none():
    held = drawn(0)
    with (
        source(held, version=1) as one,
        source(held, version=2) as other,
        receivers([one.address, other.address], held.empty()) as [receiver],
    ):
        assert receiver.current() is None
        with pytest.raises(UserError, match="no whole weights at tcp://127"):
            receiver.load()


@pytest.fixture
def run(tmp_path):
    """What a run publishes: its store, and who gives it to others."""
    store = CheckpointEngine(tmp_path / "store")
    giving = StoreSource(store.folder, ANYWHERE, KEY, print, chunk=5000)
    yield store, giving
    giving.close()
    store.close()


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def layers_of(params):
    """As an engine gives its weights: layer by layer."""
    for name, leaf in named_leaves(params):
        if name.split("/")[0] in ("dense", "moe"):
            yield from (((name, row), np.asarray(layer)) for row, layer in enumerate(leaf))
        else:
            yield name, np.asarray(leaf)


class Taking(EngineWeights):
    """The weights of a real engine."""

    def __init__(self):
        super().__init__(weights(MLA, 7), MLA, None)

    def take(self, leaves):
        self.update(self.check(leaves))


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_engines_follow_the_versions_of_a_run(run, streams, real):
    """The second one begins when the source knows who is to come, and so waits for the first."""
    store, giving = run
    engine, other = (Taking() if real else ByLayer(layers_of(weights(MLA, 7)))), ByLayer(layers_of(weights(MLA, 8)))
    made = [ReceivedWeights([giving.server.address], KEY, each, print) for each in (engine, other)]
    for count, (seed, version) in enumerate(((1, 1), (2, 2), (3, 1))):  # a resumed run publishes a number again
        expected = dict(layers_of(weights(MLA, seed)))
        store.publish(expected, version)
        until(lambda: made[0].current() not in (None, made[0].loaded))
        versions = []

        def take_second(versions=versions):
            number, leaves = made[1].load()
            other.take(leaves)
            versions.append(number)

        second = threading.Thread(target=take_second)
        if count:
            second.start()
        number, leaves = made[0].load()
        engine.take(leaves)
        if not count:
            second.start()
        second.join()
        assert [number, *versions] == [version] * 2
        for held in (dict(engine.leaves()), other.arrays):
            assert {name: np.asarray(array).tobytes() for name, array in held.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }
    # The first time the second one came later and had them from its neighbour.
    assert streams.pop(giving.server.address[1]) == 3 and list(streams.values()) == [1]
    for each in made:
        each.close()


def test_a_version_is_sent_while_it_is_written(run):
    """And one whose writing breaks off is refused; the one before is there again."""
    store, giving = run
    held = [drawn(seed) for seed in range(3)]
    store.publish(held[0].arrays, 0)
    taken, sent = drawn(9), threading.Event()
    with receivers([giving.server.address], taken) as [receiver]:
        until(lambda: receiver.current() is not None)
        taken.take(receiver.load()[1])

        def slowly(weights, breaks=False):
            for i, pair in enumerate(weights.arrays.items()):
                if i == 4:
                    assert sent.wait(20)  # the first ones have arrived before there are others
                    if breaks:
                        raise KeyError
                yield pair

        def publish(version, breaks):
            try:
                store.publish(slowly(held[version], breaks), version)
            except KeyError:
                assert breaks

        for version, breaks in ((1, False), (2, True)):
            sent.clear()
            writing = threading.Thread(target=publish, args=(version, breaks))
            writing.start()
            until(lambda: receiver.current() not in (None, receiver.loaded))
            number, leaves = receiver.load()
            assert number == version
            name, array = next(leaves)
            assert array.tobytes() == held[version].arrays[name].tobytes()
            sent.set()
            if breaks:
                with pytest.raises(UserError, match="version 2 of the weights is no longer there"):
                    list(leaves)
            else:
                assert [a.tobytes() for _, a in leaves] == [a.tobytes() for a in held[1].arrays.values()][1:]
            writing.join()
        until(lambda: receiver.current()[0].startswith("1-"))
        taken.take(receiver.load()[1])
        assert held[1].same(taken)


def test_a_run_that_ends_waits_for_those_who_have_begun(run):
    store, giving = run
    held = Arrays({f"w{i}": np.full((1 << 10, 1 << 8), i, np.float32) for i in range(24)})  # more than sockets hold
    taken = held.empty()
    store.publish(held.arrays, 3)
    with receivers([giving.server.address], taken) as [receiver]:
        until(lambda: receiver.current() is not None)
        leaves = receiver.load()[1]
        next(leaves)
        ending = threading.Thread(target=giving.close)
        ending.start()
        taken.arrays["w0"] = held.arrays["w0"]
        taken.take(leaves, 0.02)
        assert held.same(taken)
        receiver.close()
        ending.join(20)
        assert not ending.is_alive()
        with pytest.raises(OSError, match="does not answer"):
            receiver.current()


def damaged(store):
    """The path of a file of the store's version, which is damaged."""
    [path] = store.folder.glob("*/000002.bin")
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    path.write_bytes(content)
    return path


def test_a_part_of_a_damaged_array_is_refused_to_everyone(run):
    """The part itself is right."""
    store, _ = run
    held = drawn(0)
    store.publish(held.arrays, 3)
    version = StoredVersion(damaged(store).parent, manifest_of(held))
    mine, theirs = socket.socketpair()
    with version.read(lambda: None) as memory:
        send_version(SimpleNamespace(socket=theirs), version.manifest, ((2, 100, 200),), StreamPlace(), memory)
    theirs.close()
    assert CHUNK_RECORD.unpack_from(mine.recv(4096), 8)[1] == BROKEN
    with pytest.raises(UserError, match=r"000002.bin is damaged; restart the trainer"), version.read(lambda: None):
        pass


def test_an_array_that_was_damaged_in_the_store_is_refused(run):
    store, giving = run
    store.publish(drawn(0).arrays, 3)
    damaged(store)
    with receivers([giving.server.address], drawn(1)) as [receiver]:
        until(lambda: receiver.current() is not None)
        with pytest.raises(UserError, match=r"000002.bin is damaged; restart the trainer"):
            list(receiver.load()[1])


@pytest.mark.slow
def test_two_processes_of_an_engine_take_their_shards_from_two_of_a_run(tmp_path):
    port = free_port()
    told = end([python(["-m", "tests.rl.broadcast.share_member", str(tmp_path)], i, 2, port) for i in range(2)], 200)
    assert [code for code, _, _ in told] == [0, 0], told
    for _, stdout, _ in told:
        lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]  # gloo prints too
        assert [line["version"] for line in lines] == [1, 2] and all(line["equal"] for line in lines)
        assert all(line["bytes"] < line["whole"] for line in lines)
