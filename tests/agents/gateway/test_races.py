"""Requests and ends of one rollout that overlap, and answers that are hard to match: what is recorded stays whole."""

import asyncio

import pytest

from k2jax.client import Sampling
from k2jax.gateway import Gateway
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


def plain_reply(prompt, sampling):
    return reply_ids("", f"Answer {sampling.seed}.")


def test_parallel_histories_that_are_equal_by_value_keep_the_tokens_of_each(tmp_path):
    """One history, written in two ways: both requests are on their way before either is recorded."""
    bench = Bench(plain_reply, tmp_path)
    access = bench.gateway.open(spec(), "a")
    written = ['{"cmd":"ls","n":1}', '{ "n": 1.0, "cmd": "ls" }']

    async def run():
        gate = Gate(bench.client)
        async with bench.http() as http:
            sent = [
                [
                    *ITEMS,
                    ("assistant", "", "Look", [("functions.bash:0", arguments)]),
                    ("tool", "functions.bash:0", "x"),
                ]
                for arguments in written
            ]
            asked = [asyncio.create_task(say(http, access, "chat/completions", items)) for items in sent]
            await gate.holds(2)
            gate.open.set()
            await asyncio.gather(*asked)

    asyncio.run(run())
    bench.gateway.release_folder()
    again = Gateway(bench.client, CARD, tmp_path)
    for gateway in (bench.gateway, again):
        trajectory = gateway.session("a").main.trajectory
        prompts = {tuple(trajectory.path_tokens(trajectory.nodes[leaf].parent)) for leaf in trajectory.leaves()}
        assert prompts == {prompt for prompt, _ in bench.client.calls} and len(prompts) == 2
    again.release_folder()


def test_a_second_end_waits_for_the_first(tmp_path):
    bench = Bench(plain_reply, tmp_path)
    access = bench.gateway.open(spec(), "a")

    async def run():
        gate = Gate(bench.client)
        async with bench.http() as http:
            asked = asyncio.create_task(post(http, access, "chat/completions", chat_body(ITEMS)))
            await gate.holds(1)
            ends = [asyncio.create_task(bench.gateway.close("a")) for _ in range(2)]
            await asyncio.sleep(0.01)
            assert not any(end.done() for end in ends)
            gate.open.set()
            await asked
            return await asyncio.gather(*ends)

    for [trajectory] in asyncio.run(run()):
        assert trajectory.status == "finished" and trajectory.sampled_tokens > 0
    assert len(list(TrajectoryStore(tmp_path / "trajectories").read(0))) == 1


@pytest.mark.parametrize("failure", ["cancelled", "full disk"])
def test_an_end_that_did_not_come_about_can_be_asked_for_again(tmp_path, failure, monkeypatch):
    bench = Bench(plain_reply, tmp_path)
    access = bench.gateway.open(spec(), "a")

    append, failures = bench.gateway._logs.append, [OSError(28, "No space left on device")]

    def append_or_fail(name, record):
        if failure == "full disk" and record["event"] == "close" and failures:
            raise failures.pop()
        append(name, record)

    monkeypatch.setattr(bench.gateway._logs, "append", append_or_fail)

    async def run():
        gate = Gate(bench.client)
        async with bench.http() as http:
            asked = asyncio.create_task(post(http, access, "chat/completions", chat_body(ITEMS)))
            await gate.holds(1)
            end = asyncio.create_task(bench.gateway.close("a"))
            await asyncio.sleep(0)
            if failure == "cancelled":
                end.cancel()
            gate.open.set()
            with pytest.raises((asyncio.CancelledError, OSError)):
                await end
            await asked
            return await bench.gateway.close("a")

    [trajectory] = asyncio.run(run())
    assert trajectory.status == "finished"
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

    async def run():
        async with bench.http() as http:
            answer = await say(http, access, "chat/completions", ITEMS)
            assert answer[3] == [("functions.bash:0", arguments)]
            await say(http, access, "chat/completions", [*ITEMS, answer, ("tool", "functions.bash:0", "x")])

    asyncio.run(run())
    bench.gateway.release_folder()
    session, again = bench.gateway.session("a"), Gateway(bench.client, CARD, tmp_path)
    assert session.counts()["extend"] == 1 and session.sampled_tokens == session.main.trajectory.sampled_tokens > 0
    assert again.session("a").main.keys == session.main.keys and again.session("a").counts() == session.counts()
    again.release_folder()
