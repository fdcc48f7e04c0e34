"""Tool loops of the official clients through the gateway: one path, sampled ids, and the end of a budget."""

import json
from types import SimpleNamespace

import anthropic
import httpx
import openai
import pytest

from k2jax.agents.task import Budget
from k2jax.trajectory import verify
from tests.agents.gateway.scripted import OPERATOR, TOKENIZER, Bench, reply_ids, sampled_nodes, spec
from tests.http_server import served
from tests.serve.clients import CLIENTS, Chat, Messages, user

STEPS = [
    reply_ids("Look first. ", "I list the files.\n", [("functions.bash:0", '{"cmd" :  "ls"}')]),
    reply_ids("", "", [("functions.bash:1", '{"cmd": "cat 月", "n": 1.0}'), ("functions.bash:2", '{"cmd": "pwd"}')]),
    reply_ids("Enough.", "Done: 月.", []),
]
GO = [user("Go")]


def reply(prompt, sampling):
    """The next step of the script: results of tools are counted."""
    results = TOKENIZER.decode(prompt).count("## Return of ")
    return STEPS[{0: 0, 1: 1, 3: 2}[results]]


@pytest.fixture(scope="module")
def server():
    bench = Bench(reply)
    with served(bench.app) as (host, port):
        yield SimpleNamespace(url=f"http://{host}:{port}", bench=bench, gateway=bench.gateway)


def connect(kind, server, access):
    return kind(server.url + access.path, access.key)


def loop(client, stream):
    """What an agent does until the model calls no tool; returns its last text."""
    history = GO
    while True:
        answer = client.ask(history, system="Be brief.", tools=["bash"], stream=stream, **{client.limit: 7})
        if not answer.calls:
            return answer.text
        history = [*history, *answer.echo, *client.results(answer.calls, "ok")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", list(CLIENTS))
def test_a_tool_loop_is_one_path_of_what_was_sampled(server, dialect, stream):
    access = server.gateway.open(spec())
    client = connect(CLIENTS[dialect], server, access)
    assert loop(client, stream) == "Done: 月."
    session = server.gateway.session(access.rollout)
    trajectory = session.main.trajectory
    assert verify(trajectory) == [] and len(trajectory.leaves()) == 1
    assert [node.tokens.tolist() for node in sampled_nodes(trajectory)] == STEPS
    assert session.counts()["extend"] == 2 and session.counts()["start"] == 1
    for prompt, sampling in server.bench.client.calls[-3:]:  # what the client asked for does not count
        assert (sampling.max_tokens, sampling.temperature, len(prompt) > 0) == (500, 0.7, True)
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    ended = httpx.post(f"{server.url}/rollouts/{access.rollout}/close", json={}, headers=operator)
    assert ended.json()["trajectories"] == 1
    with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
        loop(client, stream)


@pytest.mark.parametrize("budget", [Budget(tokens=len(STEPS[0]) + 4), Budget(steps=1)])
def test_a_budget_ends_with_the_dialect_s_own_length_stop(server, budget):
    access, left = server.gateway.open(spec(budget=budget)), 4 if budget.tokens else 0
    clients = [connect(kind, server, access) for kind in CLIENTS.values()]
    assert clients[-1].ask(GO, tools=["bash"]).finish == "tool_calls"
    if left:
        cut = clients[-1].ask(GO, tools=["bash"])
        assert (cut.finish, cut.usage[2]) == ("length", left)
    for client in clients:
        for stream in (False, True):
            empty = client.ask(GO, tools=["bash"], stream=stream)
            assert (empty.text, empty.calls, empty.finish, empty.usage[2]) == ("", [], "length", 0)
    session = server.gateway.session(access.rollout)
    assert session.main.trajectory.sampled_tokens == session.sampled_tokens == len(STEPS[0]) + left
    assert sum(request.get("over_budget", False) for request in session.requests) == 6


def test_models_and_token_counts(server):
    access = server.gateway.open(spec())
    client = connect(Messages, server, access)
    assert [model.id for model in client.api.models.list()] == ["k2"]
    assert connect(Chat, server, access).api.models.retrieve("k2").id == "k2"
    counted = client.api.messages.count_tokens(model="any", messages=GO).input_tokens
    client.ask(GO)
    assert counted == len(server.bench.client.calls[-1][0])


def test_what_a_client_asked_for_is_recorded(server):
    access = server.gateway.open(spec())
    extra = {"reasoning_effort": "low"}
    connect(Chat, server, access).ask(GO, temperature=0.25, max_tokens=3, extra_body=extra)
    [request] = server.gateway.session(access.rollout).requests
    assert request["asked"] == {"temperature": 0.25, "max_tokens": 3, "reasoning_effort": "low"}
    assert json.loads(json.dumps(request)) == request and request["kind"] == "side call"
