"""Nothing that another machine sends is trusted: neither its key, nor its questions, manifests and chunks."""

import contextlib
import json
import random
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest as checksum

from k2jax import processes
from k2jax.errors import UserError
from k2jax.files.frames import FrameError, lengths
from k2jax.rl.broadcast import peers, rounds, streams
from k2jax.rl.broadcast.peers import Peer, make_key, parse_address, read_key
from k2jax.rl.broadcast.pieces import BEAT, CHUNK_RECORD, END, Manifest, StreamPlace
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.shares import plan_of
from k2jax.rl.broadcast.store_source import KEY_FILE, given_store, published_source
from k2jax.rl.broadcast.streams import OpenedStream, StreamReceiver
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from tests.rl.broadcast.sources import ANYWHERE, KEY, drawn, manifest_of, receivers, source
from tests.train.together import free_port


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 0.05)
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.0)


def greeted(key, other_key, version=peers.VERSION):
    """What either end of a greeting says."""
    mine, theirs = socket.socketpair()
    outcomes = {}

    def greet(name, end, key, called, spoken):
        try:
            peer = Peer(end, key, called)
            outcomes[name] = peer
        except (UserError, FrameError, OSError) as error:
            outcomes[name] = error

    thread = threading.Thread(target=greet, args=("answered", theirs, other_key, False, version))
    thread.start()
    greet("called", mine, key, True, version)
    thread.join()
    return outcomes["called"], outcomes["answered"]


def test_only_who_has_the_key_is_heard_and_it_is_never_sent(monkeypatch):
    assert all(isinstance(end, Peer) for end in greeted(KEY, KEY))
    called, answered = greeted(KEY, KEY[::-1])
    assert "the key is not that of the run" in str(called) and "the key is not that of the run" in str(answered)
    with source(drawn(0)) as server:
        other = ReceivedWeights([server.address], KEY[::-1], drawn(1), print)
        with pytest.raises(UserError, match="the key is not that of the run; copy the file"):
            other.current()
        raw = socket.create_connection(server.address)
        seen = raw.recv(1000)
        raw.sendall(
            peers._HELLO.pack(b"k2wt", peers.VERSION, bytes(32))
            + peers._proof(KEY[::-1], b"called", bytes(32), seen[6:])
        )
        assert KEY not in seen and raw.recv(1000) == b""  # the proof is not sent to who has none
        raw.close()


def test_another_version_of_the_wire_is_refused_in_one_line():
    mine, theirs = socket.socketpair()
    theirs.sendall(peers._HELLO.pack(b"k2wt", 7, bytes(32)))
    with pytest.raises(
        UserError, match=r"^the other end speaks version 7 of the wire of weights, and this process 2; .*$"
    ):
        Peer(mine, KEY, True)
    mine, theirs = socket.socketpair()
    theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3)
    with pytest.raises(FrameError, match="the other end holds no weights"):
        Peer(mine, KEY, True)


def test_a_proof_is_of_no_use_to_the_other_side():
    """An end that sends back what it was sent has not shown that it has the key."""
    mine, theirs = socket.socketpair()

    def reflect():
        while data := theirs.recv(1000):
            theirs.sendall(data)

    threading.Thread(target=reflect, daemon=True).start()
    with pytest.raises(UserError, match="the key is not that of the run"):
        Peer(mine, KEY, True)
    mine.close()


def test_a_server_outlives_whatever_it_is_asked():
    held, rng = drawn(0), random.Random(0)
    questions = [
        {}, {"ask": "nothing"}, {"ask": ["current"]}, {"ask": "manifest"}, {"ask": "manifest", "identity": {}},
        {"ask": "join", "identity": "first"}, {"ask": "join", "identity": "first", "want": "", "listen": ["a"]},
        {"ask": "holds", "identity": "first", "want": "", "listen": ["a", 1 << 20]},
        {"ask": "rejoin", "identity": "first", "want": "", "failed": 3},
        {"ask": "stream", "identity": "first", "at": [0, 0], "live": False},
        {"ask": "stream", "identity": "first", "at": [9, 0], "live": False, "payload": [[0, 0, 4]]},
        {"ask": "stream", "identity": "first", "at": [0, -1], "live": False, "payload": [[0, 0, 4]]},
        {"ask": "stream", "identity": "first", "at": [0, 0, 0], "live": False, "payload": [[0, 0, 4]]},
        {"ask": "stream", "identity": "first", "at": [0, 0], "live": False, "payload": [[0, 0, 1 << 40]]},
        {"ask": "stream", "identity": "first", "at": [0, 0], "live": False, "payload": [[99, 0, 4]]},
        {"ask": "stream", "identity": "first", "at": [0, 0], "live": False, "payload": [[1, 0, 4], [0, 0, 4]]},
        {"ask": "stream", "identity": "other", "at": [0, 0], "live": False, "payload": [[0, 0, 4]]},
    ]  # fmt: skip
    with source(held) as server, receivers([server.address], drawn(1)) as [receiver]:
        for _ in range(20):
            with socket.create_connection(server.address) as raw:
                raw.sendall(rng.randbytes(rng.choice([1, 38, 70, 500])))
        for frame in (rng.randbytes(50), lengths(1 << 30, 0), lengths(2, 1 << 31) + b"{}", lengths(5, 0) + b"[1,2]"):
            peer = Peer.call(server.address, KEY)
            peer.socket.sendall(frame)
            with contextlib.suppress(OSError):  # it has ended already
                peer.socket.shutdown(socket.SHUT_WR)
                assert peer.socket.recv(100) == b""
            peer.close()
        for question in questions:
            peer = Peer.call(server.address, KEY)
            payload = json.dumps(question.pop("payload")).encode() if "payload" in question else b""
            peer.tell(question, payload)
            try:
                assert "refused" in peer.hear()[0]
            except FrameError as error:
                assert "the end" in str(error)
            peer.close()
        taken = drawn(2)
        taken.take(receiver.load()[1])
        assert held.same(taken)


GOOD = {"name": "w0", "dtype": "float32", "shape": [16, 64]}


@pytest.mark.parametrize("change", [
    {"dtype": "object"}, {"dtype": "U99999999"}, {"dtype": 3}, {"name": 3}, {"name": "x" * 300}, {"name": ["a", "b"]},
    {"name": ["a", 1, 2]}, {"shape": 3}, {"shape": [-1]}, {"shape": [1 << 50]}, {"shape": [1 << 30, 1 << 30]},
    {"shape": [1] * 99}, {"shape": [1.5]}, {"shape": [True]}, {"start": [0]}, {"start": [1, 0], "of": [16, 64]},
    {"start": [0, 0], "of": [15, 64]}, {"of": "12"},
])  # fmt: skip
def test_a_piece_that_is_impossible_is_refused(change):
    data = {"identity": "a", "version": 1, "chunk": 10, "pieces": [GOOD | change]}
    with pytest.raises(UserError, match="what came in place of a manifest of weights is none"):
        Manifest.parse(json.dumps(data).encode())


@pytest.mark.parametrize("data", [
    b"", b"[]", b"{}", b"\xff", b"[" * 100000, b'{"pieces": 3}', b'{"pieces": [3]}', b'{"pieces": [[]]}',
    {"identity": 1}, {"version": 1.5}, {"chunk": 0}, {"chunk": 1e9}, {"chunk": 100000000}, {"chunk": True},
])  # fmt: skip
def test_what_is_no_manifest_is_refused(data):
    if isinstance(data, dict):
        data = json.dumps({"identity": "", "version": 1, "chunk": 1, "pieces": []} | data).encode()
    with pytest.raises(UserError, match="what came in place of a manifest of weights is none"):
        Manifest.parse(data)


def test_a_manifest_of_another_model_is_refused():
    mine = drawn(0)
    for other in (drawn(0, count=9), drawn(0, count=7), drawn(0, shape=(64, 16))):
        with (
            source(other) as server,
            receivers([server.address], mine) as [receiver],
            pytest.raises(UserError, match="another model"),
        ):
            receiver.load()
    manifest = manifest_of(mine)
    with pytest.raises(UserError, match="do not agree on 'w0'"):
        plan_of([manifest, manifest_of(drawn(0, np.int32))], mine)
    with pytest.raises(UserError, match="do not have them in one order"):
        plan_of([manifest, manifest._replace(pieces=manifest.pieces[::-1])], mine)
    half = manifest.pieces[0]._replace(shape=(8, 64))
    for blocks in ([half], [half, half._replace(start=(7, 0))], [half, manifest.pieces[0]]):
        with pytest.raises(UserError, match="which are not all of it; name the addresses of all processes"):
            plan_of([manifest._replace(pieces=(*blocks, *manifest.pieces[1:]))], mine)


class Script:
    """The other end of a stream, which sends what a test says."""

    def __init__(self, manifest, frames):
        self._manifest, self._frames = manifest, frames
        self.said, self.opened = [], 0

    def open(self, at, failed):
        mine, theirs = socket.socketpair()
        mine.settimeout(5)
        self.opened += 1
        for frame in self._frames:
            theirs.sendall(frame)
        theirs.close()
        return OpenedStream(("h", 1), SimpleNamespace(socket=mine, close=mine.close), False, False)

    def run(self):
        stream = StreamReceiver(self._manifest, self._manifest.whole, self.open, self.said.append)
        stream.start()
        return [bytes(data) for _, data in stream.chunks()]


def frame(tag, piece, offset, said, data=b""):
    record = CHUNK_RECORD.pack(tag, piece, offset, said)
    return lengths(len(record), len(data)) + record + data


MANIFEST = manifest_of(drawn(0, np.uint8, (10,), 1), chunk=6)
TAG = MANIFEST.tag
FIRST = frame(TAG, 0, 0, checksum(b"abcdef"), b"abcdef")
SECOND = frame(TAG, 0, 6, checksum(b"abcdefghij"), b"ghij")
LAST = frame(TAG, END, 0, 0)


def test_a_stream_that_is_right_passes():
    assert Script(MANIFEST, [FIRST, frame(TAG, BEAT, 0, 0), SECOND, LAST]).run() == [b"abcdef", b"ghij"]


@pytest.mark.parametrize(("frames", "message"), [
    ([frame(b"12345678", 0, 0, checksum(b"abcdef"), b"abcdef")], "a chunk of another version came"),
    ([frame(TAG, 0, 0, checksum(b"abcdef"), b"abcdeg")], "the chunk at byte 0 of w0 is damaged"),
    ([SECOND], "a chunk of 4 bytes of piece 0 came that is not the next one"),
    ([frame(TAG, 0, 0, checksum(b"abcde"), b"abcde")], "a chunk of 5 bytes of piece 0 came that is not the next one"),
    ([frame(TAG, 0, 0, 0, b"abcdefg")], "is too long"),
    ([frame(TAG, 7, 0, checksum(b"abcdef"), b"abcdef")], "of piece 7 came that is not the next one"),
    ([lengths(CHUNK_RECORD.size + 1, 0) + bytes(29)], "is too long"),
    ([lengths(3, 0) + b"abc"], "what came is no chunk"),
    ([LAST], "the end came before the last chunk"),
    ([], "the end of the connection"),
])  # fmt: skip
def test_what_is_not_the_next_chunk_is_refused_and_named(frames, message):
    script = Script(MANIFEST, frames)
    with pytest.raises(UserError, match="version 1 of the weights does not come: "):
        script.run()
    assert script.opened == streams.MOST_FAILURES + 1 and all(message in text for text in script.said)


@pytest.mark.parametrize("more", [[SECOND], [FIRST]])
def test_more_than_was_asked_for_is_refused(more):
    with pytest.raises(UserError, match=r"came that is not the next one|the end"):
        Script(MANIFEST, [FIRST, SECOND, *more]).run()


def test_keys_and_addresses(tmp_path):
    key = make_key(tmp_path / "run" / "key")
    assert len(key) == 32 and make_key(tmp_path / "run" / "key") == key == read_key(tmp_path / "run" / "key")
    assert (tmp_path / "run" / "key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "short").write_text("ab\n")
    for name in ("short", "none"):
        with pytest.raises(UserError, match="holds no key of 64 hexadecimal digits"):
            read_key(tmp_path / name)
    assert parse_address("tcp://[::1]:80", "x") == ("::1", 80) and parse_address("a:0", "x") == ("a", 0)
    for text in ("", "a", "a:", ":1", "a:b", "a:70000", "a:-1"):
        with pytest.raises(UserError, match=r"is no address; write HOST:PORT"):
            parse_address(text, "x")


def test_a_process_that_is_killed_while_it_makes_the_key_leaves_none(tmp_path, monkeypatch):
    def killed(count):
        raise KeyboardInterrupt

    monkeypatch.setattr(peers.secrets, "token_hex", killed)
    with pytest.raises(KeyboardInterrupt):
        make_key(tmp_path / "key")
    monkeypatch.undo()
    assert len(make_key(tmp_path / "key")) == 32


def test_the_first_process_makes_the_key_and_the_others_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "is_first", lambda: False)
    monkeypatch.setattr(processes, "barrier", lambda name: make_key(tmp_path / KEY_FILE))
    with given_store(ANYWHERE, tmp_path, tmp_path / "store"):
        made = read_key(tmp_path / KEY_FILE)
    monkeypatch.setattr(processes, "barrier", lambda name: None)
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(UserError, match="holds no key"), given_store(ANYWHERE, tmp_path, tmp_path / "store"):
        pass
    assert len(made) == 32


def test_a_run_gives_what_it_publishes(tmp_path, monkeypatch):
    port, held, taken = free_port(), drawn(0), drawn(1)
    rollout = SimpleNamespace(publish_listen=f"127.0.0.1:{port}")
    config = SimpleNamespace(rl=SimpleNamespace(rollout=rollout))
    store = CheckpointEngine(tmp_path / "store")
    with published_source(config, tmp_path, store.folder):
        store.publish(held.arrays, 5)
        receiver = ReceivedWeights([("127.0.0.1", port)], read_key(tmp_path / KEY_FILE), taken, print)
        while receiver.current() is None:
            pass
        assert receiver.current()[0].startswith("5-")
        taken.take(receiver.load()[1])
        receiver.close()
    assert held.same(taken)
    rollout.publish_listen = ""
    with published_source(config, tmp_path / "none", store.folder):
        assert not (tmp_path / "none").exists()
    assert StreamPlace() == (0, 0) and ANYWHERE[1] == 0
