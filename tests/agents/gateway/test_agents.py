"""The shapes of real agents' requests: each is recorded as one path, or branches exactly where the agent rewrites."""

import asyncio

import pytest

from k2jax.trajectory import verify
from tests.agents.gateway.agents import AGENTS
from tests.agents.gateway.scripted import TOKENIZER, Bench, post, reply_ids, spec

CALL = '{"command" :  "printf \'hello\\n\' > hello.txt", "timeout": 5.0}'  # with odd white space, on purpose

LEFT_OUT = {"smolagents": {"tool_choice"}, "codex": {"web_search", "namespace", "parallel_tool_calls"}}


def reply(prompt, sampling):
    """A call while the history shows no result, then text."""
    if "hello.txt is written" in TOKENIZER.decode(prompt):
        return reply_ids("It is written.", "Done.")
    return reply_ids("I write it.", "On it. ", [("functions.bash:0", CALL)])


@pytest.mark.parametrize("agent", list(AGENTS), ids=lambda agent: agent.__name__)
def test_an_agent_is_recorded_as_it_goes_on(agent):
    bench = Bench(reply)
    access = bench.gateway.open(spec())

    async def run():
        async with bench.http() as http:

            async def send(path, body):
                response = await post(http, access, path, body, **{"x-session-id": "ses_1"})
                assert response.status_code == 200, response.text
                return response.json()

            await agent(send)

    asyncio.run(run())
    session = bench.gateway.session(access.rollout)
    kinds = [request["kind"] for request in session.requests]
    assert kinds == AGENTS[agent]
    assert all(verify(trajectory) == [] for trajectory in session.trajectories())
    main = session.main.trajectory
    assert len(main.leaves()) == 1 + kinds.count("branch")
    sampled = [node.tokens.tolist() for t in session.trajectories() for node in t.nodes if node.turn >= 0]
    assert sorted(sampled) == sorted(reply(*call) for call in bench.client.calls)
    invented = [node for node in main.nodes if node.turn < 0 and (node.message or {}).get("role") == "assistant"]
    assert not any(node.mask.any() for node in invented)
    left_out = {name for request in session.requests for name in request["left_out"]}
    assert left_out == LEFT_OUT.get(agent.__name__, set())
    billing = TOKENIZER.decode(main.path_tokens(main.leaves()[-1]).tolist())
    assert "billing" not in billing
