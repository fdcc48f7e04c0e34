"""Verdicts are written before they are used, survive a torn end, and are replayed for the same messages alone."""

import asyncio

import httpx
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents import Task
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.errors import VerifierError
from k2jax.agents.registry import verifiers
from k2jax.agents.sandbox import SandboxError
from k2jax.agents.scorer import Scorer
from k2jax.agents.verdicts import LoggedVerdict, VerdictLog
from k2jax.agents.verifier import Verifier
from k2jax.client import ChatEndpoint
from k2jax.errors import UserError
from k2jax.trajectory import Node, Reward, Trajectory

TASK = Task("t", "d", ({"role": "user", "content": "?"},), "final_answer", metadata={"answer": "3"})
KEYS = st.builds(EpisodeKey, st.sampled_from(("train", "eval", "budget")), *[st.integers(0, 3)] * 3)
REWARDS = st.builds(Reward, st.floats(-9, 9), st.just({"a": 0.1}), st.just({"b": "\n ü"}))
LOGGED = st.builds(LoggedVerdict, st.just("1" * 16), st.none(), st.text())
VERDICTS = st.builds(LoggedVerdict, st.just("0" * 16), REWARDS) | LOGGED


def finished(answer: str, key=(1, 2, 3), status="finished") -> Trajectory:
    ids = np.zeros(1, np.int32)
    message = {"role": "assistant", "content": answer}
    node = Node(
        -1, ids, ids == 0, ids.astype(np.float32), versions=ids.astype(np.int64), turn=0, finish="stop", message=message
    )
    return Trajectory("t", "d", key, nodes=[node], status=status)


class CountingPool:
    """A pool whose verdicts are a comparison, or a failure."""

    retries = 1

    def __init__(self, fails=False):
        self.calls, self.fails = 0, fails

    async def score(self, task, trajectory):
        self.calls += 1
        if self.fails:
            raise VerifierError("it gave none")
        return Reward(float(trajectory.answer == "3"))

    async def judges(self, verifier):
        return "episode in a sandbox" if verifier == "boxed" else "answer"

    async def submit(self, function, *arguments):
        return await asyncio.to_thread(function, *arguments)


@given(st.lists(st.tuples(KEYS, st.integers(-1, 2), st.integers(-1, 2), VERDICTS), max_size=8))
def test_a_log_that_is_read_again_holds_the_last_verdict_of_every_key(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("verdicts")
    log, expected = VerdictLog(folder), {}
    for key, turn, call, verdict in records:
        log.append(key, verdict, turn, call)
        expected[key, turn, call] = verdict
    for again in (log, VerdictLog(folder)):
        assert all(again.get(key, turn, call) == verdict for (key, turn, call), verdict in expected.items())
    assert VerdictLog(folder).get(EpisodeKey("train", 9, 9, 9)) is None


def test_verdicts_of_steps_that_nobody_needs_are_deleted(tmp_path):
    log, steps = VerdictLog(tmp_path), [("eval", 4), ("eval", 1), ("train", 1), ("train", 20)]
    for purpose, step in steps:
        log.append(EpisodeKey(purpose, step, 0, 0), LoggedVerdict("d", Reward(1.0)))
    log.forget(lambda purpose, step: (purpose, step) in (("eval", 4), ("train", 1)))
    for each in (log, VerdictLog(tmp_path)):
        gone = [each.get(EpisodeKey(purpose, step, 0, 0)) is None for purpose, step in steps]
        assert gone == [True, False, True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval-00000001.jsonl", "step-00000020.jsonl"]


def test_a_log_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the verdict log"):
        VerdictLog(tmp_path / "file" / "below").append(EpisodeKey("train", 0, 0, 0), LoggedVerdict("d", None))


def test_a_verdict_is_asked_for_once_and_replayed_by_a_resumed_run(tmp_path):
    pool = CountingPool()
    for replayed in (0, 1):
        scorer = Scorer(pool, VerdictLog(tmp_path))
        assert asyncio.run(scorer.score(TASK, finished("3"))) == Reward(1.0)
        assert (pool.calls, scorer.replayed) == (1, replayed)


def test_a_verdict_is_on_disk_before_it_is_used(tmp_path, monkeypatch):
    def no_disk(*arguments):
        raise UserError("cannot write")

    scorer = Scorer(CountingPool(), VerdictLog(tmp_path))
    monkeypatch.setattr(VerdictLog, "append", no_disk)
    trajectory = finished("3")
    with pytest.raises(UserError):
        asyncio.run(scorer.judge(TASK, trajectory))
    assert trajectory.reward is None


def test_a_verdict_on_other_messages_under_the_same_key_is_not_used(tmp_path):
    scorer = Scorer(CountingPool(), VerdictLog(tmp_path))
    assert asyncio.run(scorer.score(TASK, finished("3"))).value == 1
    assert asyncio.run(scorer.score(TASK, finished("4"))).value == 0
    assert asyncio.run(scorer.score(TASK, finished("3", key=(1, 2, 4)))).value == 1
    assert scorer.replayed == 0


def test_a_failure_masks_the_sample_and_its_replay_masks_it_again(tmp_path):
    for pool in (CountingPool(fails=True), CountingPool()):
        trajectory = finished("3")
        asyncio.run(Scorer(pool, VerdictLog(tmp_path)).judge(TASK, trajectory))
        assert (trajectory.status, trajectory.reward) == ("masked", None)
        assert trajectory.error == "VerifierError: it gave none"
    assert pool.calls == 0


def test_episodes_that_have_not_ended_have_no_reward(tmp_path):
    for status in ("unfinished", "masked"):
        with pytest.raises(ValueError, match="has no reward"):
            asyncio.run(Scorer(CountingPool()).score(TASK, finished("3", status=status)))


class FakeSandbox:
    """Counts what is open."""

    open_now = opened = 0

    async def __aenter__(self):
        FakeSandbox.open_now += 1
        FakeSandbox.opened += 1
        return self

    async def __aexit__(self, *error):
        FakeSandbox.open_now -= 1


class FakeBackend:
    async def open(self, spec):
        assert spec.image == TASK.image
        return FakeSandbox()


class NeedsSandbox(Verifier):
    """Fails as often as the class says, then judges."""

    failures = 0

    async def score(self, task, trajectory, sandbox):
        assert FakeSandbox.open_now == 1
        if NeedsSandbox.failures:
            NeedsSandbox.failures -= 1
            raise SandboxError("gone")
        return Reward(1.0)


@pytest.mark.parametrize(("failures", "status", "opened"), [(0, "finished", 1), (1, "finished", 2), (2, "masked", 2)])
def test_each_try_of_a_verifier_with_a_sandbox_has_a_new_one_which_is_closed(monkeypatch, failures, status, opened):
    monkeypatch.setattr(FakeSandbox, "opened", 0)
    monkeypatch.setattr(NeedsSandbox, "failures", failures)
    monkeypatch.setitem(verifiers.added, "boxed", "tests.agents.test_verdicts:NeedsSandbox")
    task = Task("t", "d", (), "boxed")
    trajectory = finished("3")
    asyncio.run(Scorer(CountingPool(), backend=FakeBackend()).judge(task, trajectory))
    assert (trajectory.status, FakeSandbox.open_now, FakeSandbox.opened) == (status, 0, opened)


def test_a_verifier_that_needs_a_sandbox_is_refused_without_one(monkeypatch):
    monkeypatch.setitem(verifiers.added, "boxed", "tests.agents.test_verdicts:NeedsSandbox")
    with pytest.raises(UserError, match="needs a sandbox"):
        asyncio.run(Scorer(CountingPool()).score(Task("t", "d", (), "boxed"), finished("3")))


class AsksModel(Verifier):
    """Lets a model judge."""

    asks_model = True

    async def score(self, task, trajectory, sandbox):
        answer = await self.model.answer([{"role": "user", "content": trajectory.answer}], max_tokens=9)
        return Reward(float(answer.text == "yes"))


@pytest.mark.parametrize(
    ("status", "says", "value"), [(200, "yes", 1.0), (200, "no", 0.0), (503, "busy", None), (404, "no route", None)]
)
def test_a_verifier_asks_a_model_and_one_that_does_not_answer_masks_the_sample(monkeypatch, status, says, value):
    monkeypatch.setitem(verifiers.added, "boxed", "tests.agents.test_verdicts:AsksModel")
    message = {"choices": [{"message": {"content": says}, "finish_reason": "stop"}]}
    body = message if status == 200 else {"error": {"message": says}}

    def model():
        endpoint = ChatEndpoint("http://judge", "grm", attempts=2, backoff=0.001)
        transport = httpx.MockTransport(lambda request: httpx.Response(status, json=body))
        endpoint._http = httpx.AsyncClient(base_url="http://judge", transport=transport)
        return endpoint

    trajectory, of = finished("3"), Task("t", "d", (), "boxed")
    scorer = Scorer(CountingPool(), backend=FakeBackend(), model=model)
    if status == 404:  # nothing that passes: the configuration is wrong
        with pytest.raises(UserError, match="no route"):
            asyncio.run(scorer.judge(of, trajectory))
        return
    asyncio.run(scorer.judge(of, trajectory))
    assert (trajectory.reward.value if trajectory.reward else None) == value
    assert (trajectory.status == "masked") == (value is None) and FakeSandbox.open_now == 0


def test_a_verifier_that_asks_a_model_is_refused_without_one(monkeypatch):
    monkeypatch.setitem(verifiers.added, "boxed", "tests.agents.test_verdicts:AsksModel")
    with pytest.raises(UserError, match=r"asks a model; set rl\.critic\.judge to endpoint"):
        asyncio.run(Scorer(CountingPool(), backend=FakeBackend()).score(Task("t", "d", (), "boxed"), finished("3")))
