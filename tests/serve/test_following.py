"""A server goes on with the weights of a run: each version whole, between two steps, whatever becomes of the store."""

import asyncio
import time

import pytest

from k2jax import cli
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference import Worker
from k2jax.inference.client import EngineClient
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from k2jax.serve import following
from k2jax.serve.__main__ import define, main
from k2jax.serve.following import StoredWeights, WeightFollower
from tests.inference.tiny import engine

PROMPT = (1, 2, 3)
GREEDY = Sampling(max_tokens=4, temperature=0.0)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A worker that follows a store, the store, and what the follower has said."""
    monkeypatch.setattr(following, "INTERVAL", 0.01)
    store, said = CheckpointEngine(tmp_path / "store"), []
    store.publish(engine().weights.leaves(), 0)
    worker = Worker(engine())
    source = StoredWeights(tmp_path / "store")
    worker.engine.update_params(source.load()[1], 0)
    follower = WeightFollower(worker, source, said.append)
    yield worker, store, said
    follower.stop()
    worker.stop()


def eventually(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def answer(worker):
    return list(worker.call(lambda each: each.generate([list(PROMPT)], GREEDY))[0].tokens)


def expected(seed):
    return list(engine(seed=seed).generate([list(PROMPT)], GREEDY)[0].tokens)


def test_every_version_is_served_soon_after_it_and_the_last_when_the_run_has_ended(served):
    worker, store, said = served
    assert expected(0) != expected(1) and answer(worker) == expected(0) and not said
    for seed, version in ((1, 1), (0, 2), (1, 1)):  # a resumed run publishes a number again
        count = len(said)
        store.publish(engine(seed=seed).weights.leaves(), version)
        eventually(lambda count=count: len(said) > count)
        assert said[-1] == f"serving version {version} of the weights" and worker.engine.version == version
        assert answer(worker) == expected(seed)
    store.remove()
    time.sleep(0.05)
    assert answer(worker) == expected(1) and len(said) == 3


def test_a_request_that_runs_goes_on_under_the_new_weights(served):
    worker, store, said = served
    client, tokens, step = EngineClient(worker), 48, worker.engine.step
    worker.engine.step = lambda: (time.sleep(0.02), step())[1]

    async def run():
        answering = asyncio.ensure_future(client.generate(PROMPT, Sampling(max_tokens=tokens, temperature=1.0)))
        await asyncio.sleep(0)
        eventually(lambda: worker.stats().tokens_generated >= 2)
        await asyncio.to_thread(store.publish, engine(seed=1).weights.leaves(), 1)
        return await answering

    completion = asyncio.run(run())
    versions = list(completion.versions)
    assert len(versions) == tokens and versions == sorted(versions)
    assert versions[0] == 0 and versions[-1] == 1 and said


def test_half_a_version_answers_nothing_until_a_whole_one_is_there(served, monkeypatch):
    worker, store, said = served
    real, tries = following.load_current, []

    def damaged(folder):
        version, leaves = real(folder)
        tries.append(version)
        if len(tries) > 2:
            return version, leaves

        def broken():
            yield next(leaves)
            leaves.close()
            raise UserError("it is damaged")

        return version, broken()

    monkeypatch.setattr(following, "load_current", damaged)
    store.publish(engine(seed=1).weights.leaves(), 1)
    eventually(lambda: "serving version 1 of the weights" in said)
    assert said == ["it is damaged", "it is damaged", "serving version 1 of the weights"]
    assert answer(worker) == expected(1)


def test_a_version_that_comes_while_a_server_starts_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "INTERVAL", 0.01)
    store, said = CheckpointEngine(tmp_path / "store"), []
    store.publish(engine().weights.leaves(), 0)
    worker, source = Worker(engine()), StoredWeights(tmp_path / "store")
    version, leaves = source.load()
    store.publish(engine(seed=1).weights.leaves(), 1)
    worker.engine.update_params(leaves, version)
    follower = WeightFollower(worker, source, said.append)
    eventually(lambda: said == ["serving version 1 of the weights"])
    assert answer(worker) == expected(1)
    follower.stop()
    worker.stop()


def test_following_needs_a_run_that_publishes():
    values, _ = cli.parse(["serve", "--checkpoint=x", "--follow"], define, "")
    with pytest.raises(UserError, match="give --published or --published_at, too"):
        main(values)
