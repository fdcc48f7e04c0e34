"""Receivers that die or are slow, and bytes that change on the way: the others have their weights all the same."""

import contextlib
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.rl.broadcast import rounds, streams, weight_server
from k2jax.rl.broadcast.buffers import StoppedError
from k2jax.rl.broadcast.holdings import EngineVersion
from k2jax.rl.broadcast.streams import BUFFERS, StreamReceiver
from tests.rl.broadcast.sources import KEY, Arrays, Proxy, begin_chain, drawn, manifest_of, receivers, source

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 0.2)
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.0)


def chain(server, made, weights, seconds):
    """Receivers load as a chain in their order; returns their threads."""

    def take(receiver, mine, each):
        with contextlib.suppress(StoppedError):  # it is the one that ends
            mine.take(receiver.load()[1], each)

    threads = []
    for receiver, mine, each in zip(made, weights, seconds, strict=True):
        threads.append(threading.Thread(target=take, args=(receiver, mine, each)))
        threads[-1].start()
        gathered(server, len(threads))
    begin_chain(server, len(threads))
    return threads


def gathered(server, count):
    """Waits until so many have asked for their place, in which they will be."""
    rounds = server._rounds
    with rounds._changed:
        assert rounds._changed.wait_for(
            lambda: any(len(each.members) == count for each in rounds._gathering.values()), 60
        )


@pytest.mark.parametrize("at", [0, 3000, 9000, 32000])
def test_a_chunk_that_is_damaged_on_the_way_is_named_and_asked_for_again(at):
    """Of the second connection, which is the stream's; the first one has the questions."""
    held, taken, said = drawn(0), drawn(1), []

    def change(number, before, data):
        place = 600 + at - before  # behind the greeting and the answer
        if number == 2 and 0 <= place < len(data):
            data = data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]
        return data

    with source(held) as server:
        proxy = Proxy(server.address, change)
        with receivers([proxy.address], taken, say=said.append) as [receiver]:
            taken.take(receiver.load()[1])
        proxy.close()
    assert held.same(taken)
    assert len(said) == 1 and f"weights from tcp://127.0.0.1:{proxy.address[1]}: the chunk at byte" in said[0]
    assert f"of w{at // 4096} is damaged; another is asked for the rest" in said[0]


def test_damage_between_which_chunks_arrive_is_mended_however_often_it_comes():
    held, taken, said = drawn(0), drawn(1), []

    def change(number, before, data):
        place = 3000 - before
        if number > 1 and 0 <= place < len(data):
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return data

    with source(held) as server:
        proxy = Proxy(server.address, change)
        with receivers([proxy.address], taken, say=said.append) as [receiver]:
            taken.take(receiver.load()[1])
        proxy.close()
    assert held.same(taken) and len(said) > streams.MOST_FAILURES


def test_damage_that_stays_is_given_up():
    held, taken, said = drawn(0), drawn(1), []

    def change(number, before, data):
        place = 700 - before
        if number > 1 and 0 <= place < len(data):
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return data

    with source(held) as server:
        proxy = Proxy(server.address, change)
        with (
            receivers([proxy.address], taken, say=said.append) as [receiver],
            pytest.raises(UserError, match="version 1 of the weights does not come: "),
        ):
            taken.take(receiver.load()[1])
        proxy.close()
    assert len(said) == streams.MOST_FAILURES


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_receiver_that_ends_in_the_middle_is_left_out(place, monkeypatch):
    """Its predecessor goes on without it, and its successor takes the rest from the source."""
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 60.0)
    held, said = drawn(0, count=24), []
    weights = [drawn(seed, count=24) for seed in range(1, 5)]
    with source(held) as server, receivers([server.address], *weights, say=said.append) as made:
        threads = chain(server, made, weights, [0.02] * 4)
        while weights[place].arrays["w4"].tobytes() != held.arrays["w4"].tobytes():
            time.sleep(0.002)
        made[place].close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    others = [each for index, each in enumerate(weights) if index != place]
    assert all(held.same(each) for each in others) and not held.same(weights[place])
    assert any("another is asked for the rest" in text for text in said)


def test_who_is_slow_slows_down_the_others_and_takes_no_memory(monkeypatch):
    """The source stops when the buffers of the slow one, of those before it and of the system are full."""
    made, sent = [], []
    real = StreamReceiver.__init__

    def kept(self, *values, **named):
        real(self, *values, **named)
        made.append(self)

    monkeypatch.setattr(StreamReceiver, "__init__", kept)
    real_send = streams._send
    monkeypatch.setattr(
        streams, "_send", lambda peer, record, data=b"": (sent.append(len(data)), real_send(peer, record, data))
    )
    held = Arrays({f"w{i}": np.full((1 << 10, 1 << 8), i, np.float32) for i in range(40)})
    weights = [held.empty() for _ in range(2)]
    with source(held, chunk=1 << 16) as server, receivers([server.address], *weights) as receiving:
        threads = [threading.Thread(target=take_slowly, args=pair) for pair in zip(receiving, weights, strict=True)]
        go.clear()
        for thread in threads:
            thread.start()
        before, end = -1, time.monotonic() + 30
        while before != len(sent) or sum(stream.buffers.made for stream in made) < 2 * BUFFERS:
            assert time.monotonic() < end
            before = len(sent)
            time.sleep(0.3)
        total = sum(array.nbytes for array in held.arrays.values())
        assert sum(sent) < total  # of the source's and of the forwarded bytes together
        assert [stream.buffers.made for stream in made] == [BUFFERS, BUFFERS]
        go.set()
        for thread in threads:
            thread.join(60)
    assert all(held.same(each) for each in weights)


go = threading.Event()


def take_slowly(receiver, weights):
    for name, array in receiver.load()[1]:
        go.wait(60)
        weights.arrays[name] = array


def test_a_version_that_is_replaced_meanwhile_is_not_mixed_with_the_next():
    """A neighbour takes the next version while somebody still takes the one before from it."""
    old, new, first, late = (
        Arrays({f"w{i}": np.full((1 << 10, 1 << 8), 100 * seed + i, np.float32) for i in range(24)})
        for seed in range(4)
    )  # more than sockets hold
    server = weight_server.WeightServer(("127.0.0.1", 0), KEY, print)
    server.offer(EngineVersion(manifest_of(old, "old", 1, 1 << 16), old))
    with receivers([server.address], first, late) as (early, other):
        first.take(early.load()[1])
        leaves = other.load()[1]
        taken = [next(leaves)]
        server.offer(EngineVersion(manifest_of(new, "new", 2, 1 << 16), new))
        first.take(early.load()[1])
        try:
            taken += list(leaves)
        except UserError as error:
            assert "version of the weights is no longer there" in str(error)
        for name, array in taken:
            assert array.tobytes() == old.arrays[name].tobytes()
        late.take(other.load()[1])
    server.close()
    assert new.same(first) and new.same(late)


@pytest.mark.slow
def test_a_process_that_is_killed_in_the_middle_is_left_out_and_comes_back(monkeypatch):
    """Between two others in a chain; started anew it has the weights from a neighbour, not from the source."""
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 60.0)
    held, said = drawn(0, count=24), []
    weights = [drawn(seed, count=24) for seed in range(1, 3)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    def process(address, seconds):
        command = [sys.executable, "-m", "tests.rl.broadcast.taker", str(address[1]), str(seconds)]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    with source(held) as server, receivers([server.address], *weights, say=said.append) as made:
        threads = [threading.Thread(target=lambda: weights[0].take(made[0].load()[1], 0.02))]
        threads[0].start()
        gathered(server, 1)
        killed = process(server.address, 0.1)
        assert killed.stdout.readline() == "loading\n"
        gathered(server, 2)
        threads.append(threading.Thread(target=lambda: weights[1].take(made[1].load()[1], 0.02)))
        threads[1].start()
        begin_chain(server, 3)
        assert killed.stdout.readline() == "w0\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert all(held.same(each) for each in weights)
        sent = []
        send = weight_server.send_version
        monkeypatch.setattr(
            weight_server,
            "send_version",
            lambda peer, *values: (sent.append(peer.socket.getsockname()[1]), send(peer, *values)),
        )
        again = process(server.address, 0.0)
        output, _ = again.communicate(timeout=60)
        total = sum(float(np.sum(array, dtype=np.float64)) for array in held.arrays.values())
        assert output.splitlines()[-1] == repr(total)
        assert len(sent) == 1 and sent[0] != server.address[1]
    killed.stdout.close()
