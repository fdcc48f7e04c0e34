"""A server follows a run on another host, says once that it does not answer, and takes what it has when it is back."""

import contextlib
import time
from types import SimpleNamespace

from k2jax.rl.broadcast import rounds, weight_server
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.store_source import StoreSource
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from k2jax.serve import following
from k2jax.serve.following import WeightFollower
from tests.rl.broadcast.sources import ANYWHERE, KEY, drawn


def eventually(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_server_follows_a_run_on_another_host_through_its_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "INTERVAL", 0.01)
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(weight_server, "CALM_SECONDS", 0.01)
    held, taken, said, versions = [drawn(seed) for seed in range(3)], drawn(9), [], []

    def update(leaves, version):
        taken.take(leaves)
        versions.append(version)

    engine = SimpleNamespace(update_params=update)
    worker = SimpleNamespace(engine=engine, hold=lambda: None, release=lambda: None)
    store = CheckpointEngine(tmp_path / "store")
    run = StoreSource(store.folder, ANYWHERE, KEY, print)
    source = ReceivedWeights([run.server.address], KEY, taken, print)
    follower = WeightFollower(worker, source, said.append)
    for version in (0, 1):
        store.publish(held[version].arrays, version)
        eventually(lambda version=version: versions[-1:] == [version])
    run.close()
    eventually(lambda: len(said) == 3)
    time.sleep(0.1)
    assert said[:2] == [f"serving version {version} of the weights" for version in (0, 1)]
    assert len(said) == 3 and said[2].startswith("the published weights cannot be read: tcp://127.0.0.1:")
    again = StoreSource(store.folder, run.server.address, KEY, print)  # what is there already is of the run before
    time.sleep(0.1)
    assert versions == [0, 1] and source.current() is None
    store.publish(held[2].arrays, 1)
    eventually(lambda: versions == [0, 1, 1])
    assert held[2].same(taken)
    follower.stop()
    with contextlib.closing(again):
        pass
