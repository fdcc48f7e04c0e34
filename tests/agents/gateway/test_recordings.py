"""Requests of real agents, recorded with ``tests.agents.gateway.record``: each is told again and goes on as it went on."""

import asyncio
import json

import pytest

from k2jax.agents.gateway.agent_entries import AGENTS
from k2jax.trajectory import verify
from tests.agents.gateway.forced_agents import mend
from tests.agents.gateway.record import RECORDINGS
from tests.agents.gateway.scripted import TOKENIZER, Bench, reply_ids, spec, special

NAMES = sorted(path.stem for path in RECORDINGS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_agent_is_recorded_again_in_the_same_way(name):
    recording = json.loads((RECORDINGS / f"{name}.json").read_text())
    assert recording["version"] == AGENTS[name].version
    bench = Bench(mend)
    access = bench.gateway.open(spec())

    async def run():
        headers = {"Authorization": f"Bearer {access.key}"}
        async with bench.http() as http:
            for path, body in recording["requests"]:
                path = path.replace("/r/episode", access.path)
                answer = await http.post(path, json=body, headers=headers, timeout=30)
                assert answer.status_code == 200, answer.text

    asyncio.run(run())
    session = bench.gateway.session(access.rollout)
    assert [request["kind"] for request in session.requests] == recording["kinds"]
    sampled = [node.tokens.tolist() for t in session.trajectories() for node in t.nodes if node.turn >= 0]
    assert sorted(sampled) == sorted(mend(*call) for call in bench.client.calls)
    assert all(verify(trajectory) == [] for trajectory in session.trajectories())
    calls = [
        node for node in session.main.trajectory.nodes if node.turn >= 0 and (node.message or {}).get("tool_calls")
    ]
    assert "in sorted(ranges)" in calls[0].message["tool_calls"][0]["function"]["arguments"]


def test_what_the_script_says_is_what_the_recordings_hold():
    assert {"claude_code", "codex", "pi"} <= set(NAMES)
    assert TOKENIZER.decode(reply_ids("a", "b")).count("b") and special("</think>") in reply_ids("a", "b")
