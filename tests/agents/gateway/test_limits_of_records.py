"""What a rollout has recorded, and the requests of it that wait, take bounded memory; other rollouts go on."""

import asyncio

import pytest

from k2jax.agents.gateway import app, session
from tests.agents.gateway.scripted import Bench, chat_body, post, posted, spec


def user(text, **options):
    return chat_body([("user", text)], **options)


def statuses_of(bodies, slow=False):
    """Of what one rollout sends, in order or at once; another rollout is served after them. Also its session."""
    bench = Bench()
    access, other = bench.gateway.open(spec(), "r"), bench.gateway.open(spec(), "other")
    generate, ended = bench.client.generate, asyncio.Event()

    async def slowly(*arguments, **options):
        await ended.wait()
        return await generate(*arguments, **options)

    async def talk(http):
        if slow:
            bench.client.generate = slowly
            asking = [asyncio.create_task(post(http, access, "chat/completions", body)) for body in bodies]
            await asyncio.sleep(0.5)
            ended.set()
            answers = await asyncio.gather(*asking)
        else:
            answers = [await post(http, access, "chat/completions", body) for body in bodies]
        for again in (other, access) if slow else (other,):
            await posted(http, again, "chat/completions", user("Go"))
        return [answer.status_code for answer in answers]

    statuses, held = bench.run(talk), bench.gateway.session("r")
    assert held.held_bytes == held.in_progress == bench.gateway.running == 0
    return statuses, held


def test_a_rollout_has_a_number_of_side_calls(monkeypatch):
    monkeypatch.setattr(session, "MOST_SIDE_CALLS", 3)
    sides = [user(f"Title {i}", tools=False) for i in range(5)]
    statuses, _ = statuses_of([*sides, sides[0], user("Go")])
    assert statuses == [200, 200, 200, 429, 429, 200, 200]


@pytest.mark.parametrize("text", ["Go", "word " * 100])
def test_a_rollout_records_a_number_of_bytes(text, monkeypatch):
    monkeypatch.setattr(session, "MOST_RECORDED", 40_000)
    statuses, held = statuses_of([user(f"{i} {text}") for i in range(8)])
    assert statuses[:3] == [200] * 3 and statuses[-1] == 429 and statuses == sorted(statuses)
    assert len(held.requests) == statuses.count(200) and held.sampled_tokens == sum(r["tokens"] for r in held.requests)


def test_requests_that_wait_hold_a_number_of_bytes_and_a_single_one_any(monkeypatch):
    monkeypatch.setattr(app, "MOST_HELD", 10_000)
    assert set(statuses_of([user(f"{i} Go") for i in range(30)], slow=True)[0]) == {200, 429}
    monkeypatch.setattr(app, "MOST_HELD", 1)
    assert statuses_of([user("Go")])[0] == [200]


def test_a_record_names_few_kinds_of_tools_that_were_left_out():
    tools = [{"type": f"kind {i}"} for i in range(1000)] + [{"type": ["a" * 1000]}]
    statuses, held = statuses_of([user("Go") | {"tools": tools}])
    assert statuses == [200] and len(held.requests[0]["left_out"]) == 20
