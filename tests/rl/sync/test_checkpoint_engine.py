"""Engines start from the store with the current weights, whoever is killed at whatever moment."""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.inference.weights import EngineWeights, named_leaves
from k2jax.rl.sync import checkpoint_engine
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from k2jax.rl.sync.stored_weights import load_current
from tests.inference.tiny import MLA, oracle, weights
from tests.rl.sync.store_worker import PROMPT
from tests.train.together import end, free_port, python

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path):
    engine = CheckpointEngine(tmp_path / "store")
    yield engine
    engine.close()


def leaves_of(value):
    """Arrays of several dtypes and shapes, all of one value."""
    return [
        ("embed", np.full((3, 5), value, np.float32)),
        (("moe/router", 0), jnp.full((2, 2), value, jnp.bfloat16)),
        (("moe/router", 1), jnp.full((2, 2), value + 1, jnp.bfloat16)),
        ("step", np.array(value, np.int8)),
        ("nothing", np.zeros((0, 4), np.float32)),
    ]


def assert_same(leaves, expected):
    leaves = list(leaves)
    assert [name for name, _ in leaves] == [name for name, _ in expected]
    for (_, array), (_, wanted) in zip(leaves, expected, strict=True):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape
        np.testing.assert_array_equal(array, np.asarray(wanted))


def versions_in(folder):
    return sorted(int(path.name.split("-")[0]) for path in folder.iterdir() if path.is_dir())


def test_what_is_published_is_loaded_bit_for_bit(store):
    for version in (3, 4, 1):
        stats = store.publish(leaves_of(version), version)
        assert (stats.version, stats.bytes) == (version, 60 + 8 + 8 + 1) and stats.seconds > 0
        loaded, leaves = load_current(store.folder)
        assert loaded == version
        assert_same(leaves, leaves_of(version))
        assert versions_in(store.folder) == [version]


def test_a_version_stays_until_its_last_reader_is_done(store):
    store.publish(leaves_of(1), 1)
    first, second = load_current(store.folder)[1], load_current(store.folder)[1]
    next(first)
    store.publish(leaves_of(2), 2)
    store.publish(leaves_of(3), 3)
    assert versions_in(store.folder) == [1, 3]
    assert_same(second, leaves_of(1))
    store.publish(leaves_of(4), 4)
    assert versions_in(store.folder) == [1, 4]  # the first reader has it still
    first.close()
    store.publish(leaves_of(5), 5)
    assert versions_in(store.folder) == [5]


def test_readers_beside_a_writer_see_whole_versions_and_never_an_older_one(store):
    store.publish(leaves_of(0), 0)
    seen, failed, ended = [], [], threading.Event()

    def read():
        last = -1
        try:
            while not ended.is_set():
                version, leaves = load_current(store.folder)
                assert version >= last
                assert_same(leaves, leaves_of(version))
                last = version
                seen.append(version)
        except BaseException as error:  # reported by the test
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for version in range(1, 40):
        store.publish(leaves_of(version), version)
    ended.set()
    for reader in readers:
        reader.join()
    assert not failed and len(set(seen)) > 5


def test_a_damaged_array_is_refused(store):
    store.publish(leaves_of(1), 1)
    [path] = store.folder.glob("1-*/000001.bin")
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    path.write_bytes(content)
    leaves = load_current(store.folder)[1]
    next(leaves)
    with pytest.raises(UserError, match=r"000001.bin is damaged; restart the trainer"):
        next(leaves)


def test_without_a_version_the_reader_is_told_so(tmp_path):
    with pytest.raises(UserError, match="no whole weights in"):
        load_current(tmp_path)
    assert store_folder(Path("runs/a")) == store_folder(Path("runs/a").absolute()) != store_folder(Path("runs/b"))


def test_one_process_writes_at_a_time(store):
    for lock in (None, *store.folder.glob("*lock")):  # and when the lock's file is deleted
        if lock is not None:
            lock.unlink()
        with pytest.raises(UserError, match="another process publishes weights to"):
            CheckpointEngine(store.folder)
    store.close()
    CheckpointEngine(store.folder).remove()
    assert not store.folder.exists()


def test_a_failure_in_the_middle_leaves_the_version_before(store, monkeypatch):
    store.publish(leaves_of(1), 1)

    def breaks():
        yield from leaves_of(2)[:2]
        raise KeyError("lost")

    with pytest.raises(KeyError):
        store.publish(breaks(), 2)
    write = checkpoint_engine._write_array

    def full(path, array):
        if path.name == "000002.bin":
            raise OSError(28, "No space left on device")
        return write(path, array)

    monkeypatch.setattr(checkpoint_engine, "_write_array", full)
    with pytest.raises(UserError, match=r"could not be written to .*: No space left on device; it needs room for two"):
        store.publish(leaves_of(3), 3)
    assert versions_in(store.folder) == [1]
    assert_same(load_current(store.folder)[1], leaves_of(1))


def test_the_next_copy_from_the_device_begins_before_an_array_is_written(store, monkeypatch):
    """And no array is asked for before the one three places in front of it is written."""
    events = []
    write = checkpoint_engine._write_array

    def traced(path, array):
        checksum = write(path, array)
        events.append(("written", int(path.name[:6])))
        return checksum

    monkeypatch.setattr(checkpoint_engine, "_write_array", traced)

    def leaves():
        for i in range(6):
            events.append(("asked", i))
            yield str(i), jnp.full((4,), i)

    store.publish(leaves(), 1)
    for i in range(1, 6):
        assert events.index(("asked", i)) < events.index(("written", i - 1))
        if i >= 3:
            assert events.index(("written", i - 3)) < events.index(("asked", i))
    assert [event for event in events if event[0] == "written"] == [("written", i) for i in range(6)]


@pytest.mark.parametrize("stacked", [False, True])
def test_the_weights_of_an_engine_go_through_the_store(store, stacked):
    held = EngineWeights(weights(MLA, 1), MLA, None, stacked)
    store.publish(held.leaves(), 1)
    other = EngineWeights(weights(MLA, 2), MLA, None, not stacked)
    other.update(other.check(load_current(store.folder)[1]))
    assert other.checksums() == held.checksums()


class Worker:
    """The program ``tests.rl.sync.store_worker``."""

    def __init__(self, folder, *more):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "tests.rl.sync.store_worker", str(folder), *more]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)

    def ask(self, command):
        """Sends a command; returns the first line of the answer."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL
        self.process.stdin.close()
        self.process.stdout.close()


def assert_generates(worker, version):
    """Tokens and log-probabilities of the trainer's weights of a version, which are drawn with it as the seed."""
    told = worker.ask("generate")
    assert set(told["versions"]) == {version}
    rows = oracle(MLA, [*PROMPT, *told["tokens"]], seed=version)[len(PROMPT) - 1 : -1]
    assert rows.argmax(-1).tolist() == told["tokens"]
    np.testing.assert_allclose(told["logprobs"], rows.max(-1), atol=1e-4)


@pytest.mark.slow
def test_a_killed_engine_rejoins_with_the_current_version(store):
    """Killed while it updates and while it generates; the trainer waits for nobody and the old versions go."""
    store.publish(named_leaves(weights(MLA, 1)), 1)
    first = Worker(store.folder)
    assert first.ask("update") == {"version": 1}
    assert_generates(first, 1)
    assert first.ask("slow").keys() == {"at"}  # it is in the middle of an update
    store.publish(named_leaves(weights(MLA, 2)), 2)
    assert versions_in(store.folder) == [1, 2]
    first.kill()
    second = Worker(store.folder)
    assert second.ask("update") == {"version": 2}
    assert_generates(second, 2)
    assert second.ask("endless")["at"] == second.answer()["at"] == "generating"
    second.kill()
    store.publish(named_leaves(weights(MLA, 3)), 3)
    assert versions_in(store.folder) == [3]


def test_a_writer_that_is_killed_leaves_the_last_whole_version(store):
    store.publish(named_leaves(weights(MLA, 1)), 1)
    store.close()
    writer = Worker(store.folder, "2")
    for _ in range(4):
        assert writer.answer().keys() == {"at"}
    assert versions_in(store.folder) == [0, 1]
    writer.kill()
    version, leaves = load_current(store.folder)
    assert version == 1
    assert_same(leaves, named_leaves(weights(MLA, 1)))
    other = CheckpointEngine(store.folder)  # the lock went with the process
    other.publish(leaves_of(5), 5)
    assert versions_in(store.folder) == [5]
    other.close()


@pytest.mark.slow
def test_two_processes_hold_a_version_together_and_start_engines_of_their_mesh_from_it(tmp_path):
    """Also where one of them was killed before it had written its part of the next version."""
    port = free_port()
    told = end([python(["-m", "tests.rl.sync.store_member", str(tmp_path)], index, 2, port) for index in range(2)], 120)
    assert [code for code, _, _ in told] == [0, 0], told
    for index, (_, stdout, _) in enumerate(told):
        lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]  # gloo prints too
        assert [line["version"] for line in lines[:-1]] == [1, 2, 2, 3] and all(line["equal"] for line in lines[:-1])
        assert all(line["bytes"] < line["whole"] for line in lines[:-1])  # each holds its own experts alone
        assert "no version of the weights in common" in lines[-1]["refused"]
        assert versions_in(tmp_path / str(index)) == [[8, 9], [3, 7]][index]
