"""Requests of real agents, damaged at random: none is a 5xx, and what is recorded stays whole."""

import asyncio
import copy
import json
import logging
import random

import pytest

from k2jax.trajectory import verify
from tests.agents.gateway.record import RECORDINGS
from tests.agents.gateway.scripted import DIALECTS, Bench, reply_ids, spec

BODIES_OF_A_ROLLOUT = 100
VALUES = [
    None, True, False, 0, -1, 1.5, 2**70, 1e308, "", "x", "\x00", "\ud800", "🧑‍🚀" * 3, "<|im_end|>", "[EOS]",
    "null", "{}", '{"a": ' * 80, [], {}, [[]], [None], {"type": "text"}, {"type": "image_url"}, {"role": "assistant"},
    "assistant", {"type": "function", "function": {"name": "f", "arguments": "["}}, "tool", "function_call", "tool_use",
    "image", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"": {"": [""]}}, "data:,",
    "NaN",
]  # fmt: skip


def recorded(dialect):
    """Bodies of all agents that speak a dialect."""
    requests = [pair for path in sorted(RECORDINGS.glob("*.json")) for pair in json.loads(path.read_text())["requests"]]
    return [body for path, body in requests if path.endswith(dialect)]


def places(value):
    """Every container of a JSON value with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def damaged(body, draw):
    """A body after some changes at places of any depth; the shallow ones are few, so they are drawn more often."""
    body = copy.deepcopy(body)
    for _ in range(draw.randrange(1, 5)):
        known = list(places(body)) if draw.random() < 0.7 else [(body, key) for key in body]
        if not known:
            break
        parent, key = draw.choice(known)
        change = draw.choice(["value", "value", "drop", "twice", "wrap", "swap", "other place", "name"])
        if change == "drop":
            del parent[key]
        elif change == "twice" and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif change == "wrap":
            parent[key] = draw.choice([[parent[key]], {"type": parent[key]}, json.dumps(parent[key])])
        elif change == "swap" and isinstance(parent, list):
            draw.shuffle(parent)
        elif change == "other place":
            other, there = draw.choice(known)
            parent[key] = copy.deepcopy(other[there])
        elif change == "name" and isinstance(parent, dict):
            parent[draw.choice(["type", "content", "role", "x", "id", "name", "n", "stop", "logprobs"])] = parent[key]
        else:
            parent[key] = copy.deepcopy(draw.choice(VALUES))
    return body


def spelled(body, draw):
    """A body as bytes; now and then one of them is another, or the end is missing."""
    content = bytearray(json.dumps(body).encode())
    if draw.random() < 0.05:
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content[: draw.randrange(len(content))] if draw.random() < 0.02 else content)


def reply(prompt, sampling):
    call = [("functions.bash:0", '{"command": "ls"}')] if sampling.seed % 2 else []
    return reply_ids("hm" * (sampling.seed % 3), "Done.", call)


@pytest.mark.parametrize("bodies", [60, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_damaged_requests_of_agents_are_no_5xx(dialect, bodies, caplog):
    caplog.set_level(logging.ERROR)
    bench, draw, originals, counts = Bench(reply), random.Random(dialect), recorded(dialect), {}

    async def ask(http, access, content):
        headers = {"Authorization": f"Bearer {access.key}", "Content-Type": "application/json"}
        for path in (dialect, *["messages/count_tokens"] * (dialect == "messages")):
            response = await http.post(f"{access.path}/v1/{path}", content=content, headers=headers)
            assert response.status_code < 500, (response.text, content)
            counts[response.status_code] = counts.get(response.status_code, 0) + 1

    async def run():
        async with bench.http() as http:
            for number in range(bodies):
                if number % BODIES_OF_A_ROLLOUT == 0:
                    access = bench.gateway.open(spec(key=(0, number, 0)))
                await ask(http, access, spelled(damaged(draw.choice(originals), draw), draw))
                assert not caplog.records, caplog.text  # a stream that has begun can fail no other way

    asyncio.run(run())
    assert counts[200] >= bodies / 10 and counts[400] >= bodies / 10, counts
    for session in bench.gateway._sessions.values():
        assert all(verify(trajectory) == [] for trajectory in session.trajectories())
