"""The requests of real agents: each is recorded as one path, or branches exactly where the agent rewrites.

Recordings of ``tests.agents.gateway.record`` are told again with the same outcome; what none of them shows is in
``agents``.
"""

import json
import tomllib

import pytest

from k2jax.agents.gateway.agent_entries import AGENTS as KNOWN_AGENTS
from k2jax.trajectory import verify
from tests.agents.gateway.agents import AGENTS
from tests.agents.gateway.forced_agents import mend
from tests.agents.gateway.record import RECORDINGS
from tests.agents.gateway.scripted import TOKENIZER, Bench, posted, reply_ids, sampled_nodes, spec

CALL = '{"command" :  "printf \'hello\\n\' > hello.txt", "timeout": 5.0}'  # with odd white space, on purpose
LEFT_OUT = {"smolagents": {"tool_choice"}, "codex": {"namespace"}}
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.json"))


def reply(prompt, sampling):
    """A call while the history shows no result, then text."""
    if "hello.txt is written" in TOKENIZER.decode(prompt):
        return reply_ids("It is written.", "Done.")
    return reply_ids("I write it.", "On it. ", [("functions.bash:0", CALL)])


def check_told(script, agent, kinds):
    """A rollout of an agent, which gets ``send(path, body)``: every reply of the script is recorded once, as it was."""
    bench = Bench(script)
    access = bench.gateway.open(spec())

    async def talk(http):
        async def send(path, body):
            return await posted(http, access, path, body, **{"x-session-id": "ses_1"})

        await agent(send)

    bench.run(talk)
    session = bench.gateway.session(access.rollout)
    assert [request["kind"] for request in session.requests] == kinds
    assert all(verify(trajectory) == [] for trajectory in session.trajectories())
    assert len(session.main.trajectory.leaves()) == 1 + kinds.count("branch")
    sampled = [node.tokens.tolist() for t in session.trajectories() for node in sampled_nodes(t)]
    assert sorted(sampled) == sorted(script(*call) for call in bench.client.calls)
    written = [node for node in session.main.trajectory.nodes if node.turn < 0]  # by the agent, whatever its role
    assert not any(node.mask.any() for node in written)
    return session


@pytest.mark.parametrize("agent", list(AGENTS), ids=lambda agent: agent.__name__)
def test_an_agent_is_recorded_as_it_goes_on(agent):
    main = check_told(reply, agent, AGENTS[agent]).main.trajectory
    assert "billing" not in TOKENIZER.decode(main.path_tokens(main.leaves()[-1]).tolist())


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_agent_is_recorded_again_in_the_same_way(name):
    recording = json.loads((RECORDINGS / f"{name}.json").read_text())
    assert recording["version"] == KNOWN_AGENTS[name].version

    async def agent(send):
        for path, body in recording["requests"]:
            await send(path.partition("/v1/")[2], body)

    session = check_told(mend, agent, recording["kinds"])
    calls = [node.message for node in sampled_nodes(session.main.trajectory) if node.message.get("tool_calls")]
    assert "in sorted(ranges)" in calls[0]["tool_calls"][0]["function"]["arguments"]
    assert {left for request in session.requests for left in request["left_out"]} == LEFT_OUT.get(name, set())


def test_every_agent_has_a_recording():
    assert sorted(KNOWN_AGENTS) == NAMES


def test_agents_that_plan_with_a_context_are_told_the_engines_in_numbers():
    values = dict.fromkeys(("task", "base", "key", "model", "home", "work", "agents"), "x")
    agents = [agent.filled(values | {"context": "8192", "max_tokens": "1024"}) for agent in KNOWN_AGENTS.values()]
    told = {}
    for agent in agents:
        texts = [*agent.env.values(), *agent.files.values()]
        for text in texts:
            if text.startswith("{"):
                json.loads(text)
        told[agent.name] = any("8192" in text for text in texts)
    assert {name for name, is_told in told.items() if not is_told} == {"cline", "mini_swe_agent", "smolagents"}
    codex = tomllib.loads(next(agent for agent in agents if agent.name == "codex").files["x/.codex/config.toml"])
    assert codex["model_context_window"] == 8192 and codex["analytics"] == {"enabled": False}
    assert codex["model_providers"]["local"]["stream_idle_timeout_ms"] == 86_400_000
    assert {agent.name for agent in agents if agent.patience} == {"mini_swe_agent", "smolagents"}
