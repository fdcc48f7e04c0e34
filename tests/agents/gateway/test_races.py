"""Requests and ends of one rollout that overlap, and answers that are hard to match: what is recorded stays whole."""

import asyncio

import pytest

from k2jax.agents.gateway import Gateway
from k2jax.client import Sampling
from k2jax.trajectory import TrajectoryStore, verify
from tests.agents.gateway.scripted import CARD, Bench, chat_body, post, reply_ids, say, spec

ITEMS = [("user", "Go")]


class Gate:
    """Holds every answer back until it is opened."""

    def __init__(self, client):
        self._generate, self.waiting, self.open = client.generate, 0, asyncio.Event()
        client.generate = self._held

    async def _held(self, *arguments, **options):
        self.waiting += 1
        await self.open.wait()
        return await self._generate(*arguments, **options)

    async def holds(self, count):
        """Returns when so many answers wait."""
        while self.waiting < count:
            await asyncio.sleep(0.001)


def test_parallel_histories_that_are_equal_by_value_keep_the_tokens_of_each_and_go_on(tmp_path):
    """One history, written in two ways: both requests are on their way before either is recorded."""
    bench = Bench(folder=tmp_path)
    access = bench.gateway.open(spec(), "a")
    call = "functions.bash:0"
    sent = [
        [*ITEMS, ("assistant", "", "Look", [(call, arguments)]), ("tool", call, "x")]
        for arguments in ('{"cmd":"ls","n":1}', '{ "n": 1.0, "cmd": "ls" }')
    ]

    async def talk(http):
        gate = Gate(bench.client)
        asking = [asyncio.create_task(say(http, access, "chat/completions", items)) for items in sent]
        await gate.holds(2)
        gate.open.set()
        for items, answer in zip(sent, await asyncio.gather(*asking), strict=True):
            await say(http, access, "chat/completions", [*items, answer, ("user", "On")])

    bench.run(talk)
    bench.gateway.release_folder()
    again = Gateway(bench.client, CARD, tmp_path)
    first, later = [[prompt for prompt, _ in calls] for calls in (bench.client.calls[:2], bench.client.calls[2:])]
    for gateway in (bench.gateway, again):
        session = gateway.session("a")
        trajectory = session.main.trajectory
        prompts = [tuple(trajectory.path_tokens(trajectory.nodes[leaf].parent)) for leaf in trajectory.leaves()]
        assert sorted(prompts) == sorted(later) and session.counts()["extend"] == 2
    for prompt in first:
        assert first[0] != first[1] and sum(after[: len(prompt)] == prompt for after in later) == 1
    again.release_folder()


@pytest.mark.parametrize("failure", ["none", "cancelled", "close", "put_away"])
def test_a_second_end_waits_for_the_first_and_one_that_did_not_come_about_can_be_asked_for_again(
    tmp_path, failure, monkeypatch
):
    """Of a rollout with a request on its way; the disk is full for the record of the end, or when its log is moved."""
    bench = Bench(folder=tmp_path)
    access, logs = bench.gateway.open(spec(), "a"), bench.gateway._logs
    append, put_away, failures = logs.append, logs.put_away, [OSError(28, "No space left on device")]

    def fail_once(step):
        if failure == step and failures:
            raise failures.pop()

    monkeypatch.setattr(logs, "append", lambda name, record: fail_once(record["event"]) or append(name, record))
    monkeypatch.setattr(logs, "put_away", lambda name: fail_once("put_away") or put_away(name))

    async def talk(http):
        gate = Gate(bench.client)
        asking = asyncio.create_task(post(http, access, "chat/completions", chat_body(ITEMS)))
        await gate.holds(1)
        ends = [asyncio.create_task(bench.gateway.close("a")) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert not any(end.done() for end in ends)
        if failure == "cancelled":
            ends[0].cancel()
        gate.open.set()
        await asking
        return await asyncio.gather(*ends, return_exceptions=True)

    first, [trajectory] = bench.run(talk)
    if failure == "none":
        assert first[0].status == "finished" and first[0].sampled_tokens > 0
    else:
        assert isinstance(first, asyncio.CancelledError if failure == "cancelled" else OSError)
    assert trajectory.status == "finished" and trajectory.sampled_tokens > 0 and not bench.gateway._sessions
    [stored] = TrajectoryStore(tmp_path / "trajectories").read(0)
    assert stored.status == "finished" and verify(stored) == []
    bench.gateway.release_folder()
    again = Gateway(bench.client, CARD, tmp_path)
    assert again.session("a").is_closed
    again.release_folder()


def test_calls_with_deeply_nested_arguments_are_recorded_and_the_gateway_starts_again(tmp_path):
    arguments = '{"cmd": ' + "[" * 700 + "]" * 700 + "}"
    bench = Bench(lambda prompt, sampling: reply_ids("", "", [("functions.bash:0", arguments)]), tmp_path)
    access = bench.gateway.open(spec(sampling=Sampling(max_tokens=2000)), "a")

    async def talk(http):
        answer = await say(http, access, "chat/completions", ITEMS)
        assert answer[3] == [("functions.bash:0", arguments)]
        await say(http, access, "chat/completions", [*ITEMS, answer, ("tool", "functions.bash:0", "x")])

    bench.run(talk)
    bench.gateway.release_folder()
    session, again = bench.gateway.session("a"), Gateway(bench.client, CARD, tmp_path)
    assert session.counts()["extend"] == 1 and session.sampled_tokens == session.main.trajectory.sampled_tokens > 0
    assert again.session("a").main.keys == session.main.keys and again.session("a").counts() == session.counts()
    again.release_folder()
