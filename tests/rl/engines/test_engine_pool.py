"""Engines join, take versions and are lost: no token comes from other weights than are asked for, and none is lost."""

import asyncio

import pytest

from k2jax.agents.collect import run_member, wire
from k2jax.agents.collect.engine_address import EngineAddress, tcp_listener
from k2jax.agents.collect.run_member import MemberEnd
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.rl.engines import engine_pool
from k2jax.rl.sync.weight_sync import StaleWeightsError
from tests.rl.engines.members import CountingEngine, joined, opened, until

EIGHT = Sampling(max_tokens=8)


async def test_requests_wait_for_an_engine_that_has_what_is_needed(tmp_path):
    async with opened(tmp_path / "s", published=2) as (pool, said):
        await pool.need(2)
        asking = asyncio.ensure_future(pool.generate([1], EIGHT))
        old, other = CountingEngine("old", 1), CountingEngine("other", 2)
        other.digest = "of other weights"
        async with joined(pool, tmp_path / "s", old, other):
            await asyncio.sleep(0.02)
            assert not asking.done() and not old.asked and not other.asked
            old.busy += 1.0
            old.take(2)
            completion = await asking
            assert completion.tokens.tolist() == list(range(8)) and set(completion.versions.tolist()) == {2}
            await pool.need(1)
            other.digest = None
            other.take(1)
            await until(lambda: [each.version for each in pool.engines.values()] == [2, 1])
            await pool.need(None)
            assert pool.record() == {"engines": 2.0, "engines/lost": 0.0, "engines/behind": 0.5}
            assert pool.stats().tokens_generated == 8 and pool.stats().slots == 4 and pool.busy_seconds == 0.5
        await until(lambda: not pool.engines)
        assert [line.partition(":")[0] for line in said[:2]] == [
            "the engine old has joined",
            "the engine other has joined",
        ]


async def test_what_a_lost_engine_has_streamed_is_gone_on_behind_and_other_answers_begin_anew(tmp_path):
    async with opened(tmp_path / "s", published=1) as (pool, said):
        first, second, seen = CountingEngine("first"), CountingEngine("second", 1), []
        first.hold_at = 5
        async with joined(pool, tmp_path / "s", first):
            streamed = asyncio.ensure_future(
                pool.generate([1], EIGHT, on_token=lambda token, _: seen.append(token) or token == 6)
            )
            whole = asyncio.ensure_future(pool.generate([2], EIGHT))
            await until(lambda: len(first.asked) == 2 and len(seen) == 5)
            async with joined(pool, tmp_path / "s", second):
                first.kill()
                streamed, whole = await streamed, await whole
                assert seen == list(range(7)) == streamed.tokens.tolist() and streamed.finish == "stop"
                assert streamed.versions.tolist() == [0] * 5 + [1] * 2 and set(whole.versions.tolist()) == {1}
                assert sorted(second.asked) == [[], list(range(5))]
        assert "the engine first has left: 1 engine of the run" in said


async def test_an_answer_that_had_ended_when_its_engine_was_lost_is_complete(tmp_path):
    async with opened(tmp_path / "s") as (pool, _):
        first, seen = CountingEngine("first"), []
        first.hold_at = 3
        async with joined(pool, tmp_path / "s", first):
            options = {"on_token": lambda token, _: seen.append(token) or token == 2}
            asking = asyncio.ensure_future(pool.generate([1], EIGHT, **options))
            await until(lambda: len(seen) == 3)
            first.kill()
            completion = await asking
        assert (completion.tokens.tolist(), completion.finish) == ([0, 1, 2], "stop")


async def test_tokens_of_a_version_that_the_engine_was_not_known_to_have_end_the_run(tmp_path):
    async with opened(tmp_path / "s", published=1) as (pool, _):
        engine = CountingEngine("silent")
        async with joined(pool, tmp_path / "s", engine):
            engine.version = 1  # without a word
            with pytest.raises(StaleWeightsError, match="silent has sampled with weights of version 1"):
                await pool.generate([1], EIGHT)
            with pytest.raises(StaleWeightsError):
                pool.check()


async def test_a_run_without_an_engine_says_that_it_waits_once(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_pool, "WATCH", 0.001)
    monkeypatch.setattr(engine_pool, "WAIT_SECONDS", 0.02)
    async with opened(tmp_path / "s") as (pool, said):
        await asyncio.sleep(0.05)
        assert not said, "nobody asks for anything"
        asking = asyncio.ensure_future(pool.generate([1], EIGHT))
        await until(lambda: said)
        await asyncio.sleep(0.05)
        assert said == ["no engine is there, and the run waits for one: start one"]
        async with joined(pool, tmp_path / "s", CountingEngine("late")):
            await asking


async def test_an_engine_that_says_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_pool, "WATCH", 0.001)
    monkeypatch.setattr(engine_pool, "SILENT_SECONDS", 0.1)
    async with opened(tmp_path / "s") as (pool, said), joined(pool, tmp_path / "s", CountingEngine("mute")):
        await until(lambda: not pool.engines)
        assert "the engine mute has said nothing for 0 s: 0 engines of the run" in said


async def test_sub_agents_have_an_engine_of_their_own_while_there_are_two(tmp_path):
    async with opened(tmp_path / "s") as (pool, _):
        first, second = CountingEngine("first"), CountingEngine("second")
        async with joined(pool, tmp_path / "s", first):
            await pool.subagents.generate([1], EIGHT)
            async with joined(pool, tmp_path / "s", second):
                await asyncio.gather(*(pool.generate([number], EIGHT) for number in range(6)))
                await asyncio.gather(*(pool.subagents.generate([number], EIGHT) for number in range(2)))
                assert (len(first.asked), len(second.asked)) == (7, 2)
                second.kill()
                await until(lambda: len(pool.engines) == 1)
                await asyncio.gather(pool.generate([7], EIGHT), pool.subagents.generate([8], EIGHT))
        assert len(first.asked) == 9


async def test_an_engine_ends_with_its_run_and_notices_one_that_is_lost(tmp_path):
    async with opened(tmp_path / "s") as (pool, said):
        async with joined(pool, tmp_path / "s", CountingEngine("a"), CountingEngine("b")) as (ended, lost):
            list(pool.engines.values())[1].connection.abort()
            assert await lost == MemberEnd.LOST
            await pool.close()
            assert await ended == MemberEnd.RUN_ENDED
        assert not [line for line in said if "a has left" in line]


async def test_engines_of_other_machines_show_the_key(tmp_path):
    async with opened(tmp_path / "s") as (pool, _):
        listener, address = tcp_listener("127.0.0.1")
        await pool.open(tmp_path / "t", listener, address.key)
        wrong = CountingEngine("wrong").member.serve(address._replace(key="00" * 32))
        assert await wrong, "its connection is closed"
        assert not pool.engines
        right = asyncio.ensure_future(CountingEngine("right").member.serve(address))
        assert (await pool.generate([1], EIGHT)).tokens.tolist() == list(range(8))
        right.cancel()


async def test_another_version_of_the_wire_is_refused_by_name_on_both_sides(tmp_path, monkeypatch):
    async with opened(tmp_path / "s") as (pool, said):
        monkeypatch.setattr("k2jax.agents.collect.engine_address.VERSION", wire.VERSION + 1)
        monkeypatch.setattr("k2jax.agents.collect.engine_socket.VERSION", wire.VERSION)
        monkeypatch.setattr(run_member, "VERSION", wire.VERSION + 2)
        with pytest.raises(UserError, match=f"the run speaks version {wire.VERSION + 1} of the wire"):
            await CountingEngine("other").member.serve(EngineAddress(str(tmp_path / "s")))
        assert said[0].startswith(f"an engine that wants to join speaks version {wire.VERSION + 1} of the wire")
        assert not pool.engines


async def test_the_run_learns_by_which_weights_the_next_tokens_come_and_when_that_changes(tmp_path):
    old, new, noticed = CountingEngine("old"), CountingEngine("new", 1), []
    async with opened(tmp_path / "s", published=2) as (pool, _):
        pool.noticed = lambda: noticed.append(pool.sampled_by())
        assert pool.sampled_by() is None  # nobody is there, and nothing is needed
        await pool.need(1)
        assert pool.sampled_by() == 1  # whoever joins answers with these weights at least
        async with joined(pool, tmp_path / "s", old, new):
            assert pool.sampled_by() == 1  # nothing goes to the old one
            await pool.need(0)
            assert pool.sampled_by() == 0
            new.take(2)
            await until(lambda: pool.engines[1].version == 2)
            assert pool.sampled_by() == 0
            old.take(2)
            await until(lambda: noticed[-1] == 2)
            new.kill()
            before = len(noticed)
            await until(lambda: len(noticed) > before)
