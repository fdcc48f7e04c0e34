"""The store: what is written reads back, a killed writer loses nothing, and damage is told with its place."""

import contextlib
import hashlib
import io
import itertools
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.trajectory import EncodingError, Node, Reward, Trajectory, TrajectoryStore, encoding, read_trajectories
from k2jax.trajectory.encoding import decode, encode
from k2jax.trajectory.links import sub_trajectories
from tests.checkpoint.test_full_disk import files_end_at
from tests.trajectory.trees import chat, contents, sampled, trajectories


def small(folder, count=2):
    """A file that was appended to, and what it holds."""
    wanted = [chat(sample) for sample in range(count)]
    with TrajectoryStore(folder) as store:
        for trajectory in wanted:
            store.append(5, trajectory)
    return folder / "5.k2t", wanted


def read(path):
    """The contents of a file, and the warnings of its reader."""
    with contextlib.redirect_stderr(io.StringIO()) as written:
        return [contents(trajectory) for trajectory in read_trajectories(path)], written.getvalue().splitlines()


@settings(max_examples=40)
@given(wanted=st.lists(trajectories(), min_size=1, max_size=3))
def test_every_tree_reads_back_bit_for_bit(tmp_path_factory, wanted):
    folder = tmp_path_factory.mktemp("store")
    with TrajectoryStore(folder) as store:
        store.write(3, iter(wanted))
        for trajectory in wanted:
            store.append(4, trajectory)
    for step in (3, 4):
        assert read(folder / f"{step}.k2t") == (list(map(contents, wanted)), [])


def test_a_record_that_is_cut_off_is_reported_to_readers_and_by_the_next_writer(tmp_path, capsys):
    path, wanted = small(tmp_path)
    end = 32 + 48 + len(zlib.compress(encode(wanted[0]), 1))  # the format by its own arithmetic
    path.write_bytes(path.read_bytes()[: end + 50])
    got, reports = read(path)
    with TrajectoryStore(tmp_path) as store:
        store.append(5, chat(9))
    reports += capsys.readouterr().err.splitlines()
    assert got == [contents(wanted[0])] and len(reports) == 2
    assert all(f"5.k2t: the last record, at byte {end:,}, is incomplete" in line for line in reports)
    assert read(path) == (list(map(contents, [wanted[0], chat(9)])), [])


def test_a_file_that_was_written_at_once_and_is_cut_off_is_damaged(tmp_path):
    store = TrajectoryStore(tmp_path)
    path = store.write(5, [chat(0), chat(1)])
    data = path.read_bytes()
    lengths = {*range(100), *random.Random(0).sample(range(len(data)), 100), len(data) - 1}
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"5\.k2t is damaged at byte"):
            read(path)
    path.write_bytes(data)
    with store:
        store.append(5, chat(2))
    assert len(read(path)[0]) == 3


def test_records_that_are_missing_doubled_or_exchanged_are_reported(tmp_path):
    path, wanted = small(tmp_path, 3)
    data = path.read_bytes()
    ends = [32]
    for trajectory in wanted:
        ends.append(ends[-1] + 48 + len(zlib.compress(encode(trajectory), 1)))
    records = [data[start:end] for start, end in itertools.pairwise(ends)]
    for order in ([1, 2], [0, 2], [0, 0, 1, 2], [1, 0, 2]):
        path.write_bytes(data[:32] + b"".join(records[index] for index in order))
        with pytest.raises(UserError, match="belongs"):
            read(path)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"it holds the iteration 5; name it 5\.k2t"):
        read(path.rename(tmp_path / "6.k2t"))


def test_a_repeated_iteration_replaces_its_records_alone(tmp_path):
    store = TrajectoryStore(tmp_path)
    for step in range(3):
        store.write(step, [chat(step)])
    store.write(1, [chat(8), chat(9)])
    assert [[t.key[2] for t in store.read(step)] for step in store.steps()] == [[0], [8, 9], [2]]

    def failing():
        yield chat(0)
        raise RuntimeError("the machine failed")

    with pytest.raises(RuntimeError):
        store.write(1, failing())
    assert [t.key[2] for t in store.read(1)] == [8, 9]
    assert sorted(os.listdir(tmp_path)) == ["0.k2t", "1.k2t", "2.k2t"]


def test_an_appended_iteration_begins_anew_when_it_is_discarded(tmp_path):
    with TrajectoryStore(tmp_path) as store:
        for sample in (0, 1):
            store.append(4, chat(sample))
        store.append(5, chat(2))
        store.discard(5)
        store.discard(4)
        store.append(4, chat(7))
        assert store.steps() == [4]
        assert [t.key[2] for t in store.read(4)] == [7]


def test_the_newest_iterations_stay_and_the_one_just_written(tmp_path):
    with TrajectoryStore(tmp_path, keep=3) as store:
        for step in range(8, 12):
            store.write(step, [chat(step)])
        assert store.steps() == [9, 10, 11]
        store.append(12, chat(0))
        store.append(12, chat(1))
        assert store.steps() == [10, 11, 12]
        store.write(7, [chat(7)])  # a run that resumes far back
        assert store.steps() == [7, 10, 11, 12]
        store.write(8, [chat(8)])
        assert store.steps() == [8, 10, 11, 12]


def test_a_missing_iteration_names_those_that_are_stored(tmp_path):
    store = TrajectoryStore(tmp_path)
    store.write(2, [])
    store.write(10, [])
    with pytest.raises(UserError, match="stored iterations: 2, 10"):
        store.read(3)


WRITER = """
import sys
from k2jax.trajectory import TrajectoryStore
from tests.trajectory.trees import chat
store = TrajectoryStore(sys.argv[1])
start = len(list(store.read(0))) if store.steps() else 0
for sample in range(start, 10**6):
    store.append(0, chat(sample))
    print(sample, flush=True)
"""


def test_a_writer_killed_at_any_time_loses_nothing_that_it_reported(tmp_path):
    draw, reported = random.Random(0), -1
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        first = writer.stdout.readline()
        assert int(first) in (reported + 1, reported + 2)  # the record after the last report may have been written
        time.sleep(draw.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        reported = int((first + writer.communicate()[0]).split()[-1])
        samples = [t.key[2] for t in read_trajectories(tmp_path / "0.k2t")]
        assert samples == list(range(len(samples))) and len(samples) in (reported + 1, reported + 2)


def test_a_full_disk_leaves_the_iteration_that_was_to_be_replaced(tmp_path):
    path, wanted = small(tmp_path)
    with files_end_at(path.stat().st_size), pytest.raises(OSError) as error:
        TrajectoryStore(tmp_path).write(5, [chat(sample) for sample in range(9)])
    assert error.value.filename == str(path)
    assert read(path) == (list(map(contents, wanted)), []) and os.listdir(tmp_path) == ["5.k2t"]


def test_one_trajectory_at_a_time_is_in_memory(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 2**31, 200_000).tolist()
    big = chat()
    big.add(sampled(0, tokens, turn=3, version=4))
    store = TrajectoryStore(tmp_path)
    store.write(0, (big for _ in range(12)))
    bytes_each = len(encode(big))
    tracemalloc.start()
    assert sum(t.sampled_tokens for t in store.read(0)) == 12 * big.sampled_tokens
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * bytes_each


def record(data, *, stored=None, decompressed=None):
    """A record around any bytes, with right checksums, as a hostile writer would make it."""
    body = zlib.compress(data)
    digest = hashlib.blake2b(body, digest_size=16).digest()
    lengths = stored or len(body), decompressed or len(data)
    fields = struct.pack("<4sQQQ16s", b"k2tr", 0, *lengths, digest)
    return fields + struct.pack("<I", zlib.crc32(fields)) + body


def encoded(structure, arrays=b"", count=0):
    """Bytes in the layout of an encoded trajectory."""
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    return struct.pack("<QQ", len(text), count) + arrays + text


PLAIN = {
    "task": "t", "domain": "d", "key": [0, 0, 0], "status": "finished", "error": "", "metadata": {}, "reward": None,
    "nodes": [],
}  # fmt: skip
NODE = {"parent": -1, "tokens": 1, "turn": -1, "temperature": 1.0, "finish": "", "message": None, "experts": None}
TOKEN = bytes(17)


def with_node(**changed):
    return PLAIN | {"nodes": [NODE | changed]}


def spawning(depth):
    """A trajectory with sub-episodes within each other."""
    return PLAIN | {"spawned": {"0": spawning(depth - 1)}} if depth else PLAIN


HOSTILE = {
    "nothing": b"",
    "a huge structure": struct.pack("<QQ", 2**63, 0) + b"{}",
    "a huge count": struct.pack("<QQ", 2, 2**62) + b"{}",
    "no object": encoded([1]),
    "deep JSON": encoded(b"[" * 200_000 + b"]" * 200_000),
    "deep metadata": encoded(
        json.dumps(PLAIN).encode().replace(b'"metadata": {}', b'"metadata": {"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}")
    ),
    "deep sub-episodes": encoded(spawning(65)),
    "a sub-episode without a number": encoded(PLAIN | {"spawned": {"01": PLAIN}}),
    "sub-episodes that are none": encoded(PLAIN | {"spawned": {"0": [PLAIN]}}),
    "no JSON": encoded(b"\xff\xfe"),
    "a long number": encoded(b"9" * 10_000),
    "NaN among the metadata": encoded(PLAIN | {"metadata": {"a": float("nan")}}),
    "an infinite number": encoded(json.dumps(PLAIN | {"metadata": {"a": 0}}).encode().replace(b": 0}", b": -1e999}")),
    "a missing key": encoded({}),
    "an unknown status": encoded(PLAIN | {"status": "__class__"}),
    "a key of two": encoded(PLAIN | {"key": [0, 0]}),
    "a key of text": encoded(PLAIN | {"key": "abc"}),
    "a reward of text": encoded(PLAIN | {"reward": {"value": "1", "parts": {}, "info": {}}}),
    "more tokens than arrays": encoded(with_node(tokens=2), TOKEN, 1),
    "negative tokens": encoded(with_node(tokens=-1), TOKEN, 1),
    "tokens that are no number": encoded(with_node(tokens=True), TOKEN, 1),
    "arrays of another type": encoded(with_node(), bytes(13), 1),
    "bytes left over": encoded(with_node(), TOKEN + b"\0", 1),
    "experts that are not there": encoded(with_node(experts=[3, 2]), TOKEN, 1),
    "experts without end": encoded(with_node(experts=[2**30, 2**30]), TOKEN, 1),
    "negative experts": encoded(with_node(experts=[-1, -2]), TOKEN + bytes(4), 1),
    "a shape of one": encoded(with_node(experts=[1]), TOKEN + bytes(2), 1),
    "free log-probabilities that are not there": encoded(with_node(free=True), TOKEN, 1),
    "a flag that is none": encoded(with_node(free=1), TOKEN + bytes(4), 1),
    "a mask of 2": encoded(with_node(), bytes(16) + b"\2", 1),
    "a parent that is later": encoded(with_node(parent=0), TOKEN, 1),
    "a parent of text": encoded(with_node(parent="0"), TOKEN, 1),
    "a message that is none": encoded(with_node(message=[1]), TOKEN, 1),
    "NaN": encoded(json.dumps(with_node(temperature=float("nan"))).encode().replace(b"NaN", b'"x"'), TOKEN, 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_is_refused_in_one_line(tmp_path, name):
    path, _ = small(tmp_path, 0)
    TrajectoryStore(tmp_path).write(5, [])
    header = path.read_bytes()
    path.write_bytes(header + record(HOSTILE[name]))
    with pytest.raises(UserError, match=r"5\.k2t is damaged at byte 32: the record is no trajectory: ") as error:
        read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_the_hostile_records_are_hostile_for_what_they_change():
    assert decode(encoded(with_node(), TOKEN, 1)).nodes[0].tokens.tolist() == [0]
    assert decode(encoded(with_node(experts=[1, 2]), TOKEN + bytes(4), 1)).nodes[0].experts.shape == (1, 1, 2)
    assert decode(encoded(with_node(free=True), TOKEN + bytes(4), 1)).nodes[0].free_logprobs.tolist() == [0]
    assert decode(encoded(with_node(), TOKEN, 1)).nodes[0].free_logprobs is None
    assert len(list(sub_trajectories(decode(encoded(spawning(64)))))) == 64


def test_a_record_that_decompresses_to_more_than_it_says_is_refused_without_doing_so(tmp_path):
    path = TrajectoryStore(tmp_path).write(5, [])
    header = path.read_bytes()
    bomb = record(bytes(2**27), decompressed=1000)
    path.write_bytes(header + bomb)
    tracemalloc.start()
    with pytest.raises(UserError, match="its length is not the one in its header"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    path.write_bytes(header + record(b"x", decompressed=2**60))
    with pytest.raises(UserError, match="larger than any record may be"):
        read(path)


def test_what_is_no_trajectory_is_not_written(tmp_path, monkeypatch):
    def refused(match, **changed):
        trajectory = Trajectory(**({"task": "t", "domain": "d", "key": (0, 0, 0)} | changed))
        with pytest.raises(EncodingError, match=match):
            encode(trajectory)

    refused("not JSON", metadata={"a": float("nan")})
    refused("not JSON", reward=Reward(float("inf")))
    refused("is no string", metadata={"a": {1: 2}})
    refused("not JSON", metadata={"a": object()})
    deep = Trajectory("t", "d", (0, 0, 0))
    for _ in range(64):
        deep = Trajectory("t", "d", (0, 0, 0), spawned={0: deep})
    assert encode(deep)
    refused("within each other", spawned={0: deep})
    nested = []
    for _ in range(10**5):
        nested = [nested]
    refused("not JSON", metadata={"a": nested})
    node = Node.observed(-1, [1, 2])
    for name, array in {
        "tokens": np.zeros(2, np.int64),
        "mask": np.zeros(2, np.int8),
        "logprobs": np.zeros((2, 1), np.float32),
        "versions": np.zeros(3, np.int64),
        "experts": np.zeros((2, 4), np.int16),
    }.items():
        fields = {key: getattr(node, key) for key in Node.__dataclass_fields__}
        refused(f"node 0: {name} are not", nodes=[Node(**(fields | {name: array}))])
    monkeypatch.setattr(encoding, "LARGEST_STRUCTURE", 99)
    refused("and 99 can be stored", metadata={"a": "b" * 100})
    with pytest.raises(EncodingError, match="its lengths are impossible"):
        decode(encoded(with_node(), TOKEN, 1))
    monkeypatch.setattr(encoding, "LARGEST", 100)
    refused("at most 100", metadata={"a": "b" * 100})
