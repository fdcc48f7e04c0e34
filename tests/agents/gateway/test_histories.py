"""Whatever a client makes of its history: each sampled token is recorded once, and every path says what was said."""

import itertools
import json
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.gateway import Gateway, bodies
from k2jax.client import ScriptedClient
from k2jax.trajectory import verify
from k2jax.trajectory.encoding import encode
from k2jax.trajectory.filters import no_failed_call
from tests.agents.gateway.scripted import (
    CARD,
    CHAT,
    DIALECTS,
    SCHEMA,
    TOKENIZER,
    Bench,
    posted,
    reply_ids,
    sampled_nodes,
    say,
    spec,
)
from tests.text import kimi

WORDS = ["hm", " 月之暗面", "The quick", " fox\n", "  jumps;", "</think", "def f(x):", "🧑‍🚀"]
OPERATIONS = [
    "go on", "repeat", "truncate", "summarise", "reorder", "strip thinking", "rewrite ids", "edit", "rewrite arguments",
]  # fmt: skip


def scripted_reply(prompt, sampling):
    """A thought, a text and calls, each of them present or not, decided by the seed."""
    draw = random.Random(sampling.seed)
    thought, text = ("".join(draw.choices(WORDS, k=draw.randrange(4))) for _ in range(2))
    calls = [
        (f"functions.bash:{i}", json.dumps({"cmd": draw.choice(WORDS), "n": 1.0}, ensure_ascii=draw.random() < 0.5))
        for i in range(draw.choice([0, 1, 1, 2]))
    ]
    return reply_ids(thought, text or ("" if calls else "ok"), calls)


def changed(items, operation, draw):
    """The history after an operation of the client's."""
    items = list(items)
    if operation == "truncate":
        items = items[: max(2, len(items) - draw.randrange(1, 4))]
    elif operation == "summarise":
        items = [*items[:2], ("user", f"So far {len(items)} messages.")]
    elif operation == "reorder" and len(items) > 3:
        i, j = draw.sample(range(1, len(items)), 2)
        items[i], items[j] = items[j], items[i]
    for index, item in enumerate(items):
        if item[0] == "assistant":
            _, thought, text, calls = item
            if operation == "strip thinking":
                thought = ""
            elif operation == "rewrite ids":
                calls = [(f"call_{i}_{draw.randrange(9)}", arguments) for i, (_, arguments) in enumerate(calls)]
            elif operation == "rewrite arguments":  # equal as JSON
                calls = [(i, json.dumps({"n": 1, **json.loads(a)}, separators=(" ,", " :  "))) for i, a in calls]
            elif operation == "edit" and draw.random() < 0.5:
                text += "!"
            items[index] = ("assistant", thought, text or ("" if calls else "ok"), calls)
    apart = []
    for item in items:  # two answers in a row would be one in OpenAI's responses
        apart += [("user", "and")] if apart and apart[-1][0] == item[0] == "assistant" else []
        apart.append(item)
    return apart


def reactions(answer, draw):
    """What follows an answer: results of its calls, or a question."""
    results = [("tool", call_id, draw.choice(WORDS)) for call_id, _ in answer[3]]
    return results or [("user", draw.choice(WORDS))]


def plain_text(items):
    """The conversation without markup, written out by hand; white space and JSON's spelling of numbers left out."""
    parts, ids = [], []
    for kind, *fields in items:
        if kind == "assistant":
            thought, text, calls = fields
            parts += ["assistant", thought, text]
            for call_id, arguments in calls:
                if call_id.startswith("call_"):  # a client's own: numbered over the conversation
                    free = (f"functions.bash:{n}" for n in itertools.count(len(ids)))
                    call_id = next(name for name in free if name not in ids)
                ids.append(call_id)
                parts += [call_id, arguments]
        elif kind == "tool":
            parts += ["tool## Return of ", fields[0], fields[1]]
        else:
            parts += [kind, fields[0]]
    return squeezed("".join(parts))


def squeezed(text):
    """Text without white space, escapes of JSON undone, and without the number that may come back in another place."""
    text = "".join(text.split())
    for n in ("1.0", "1"):
        text = text.replace(f'"n":{n},', "").replace(f',"n":{n}', "")
    return re.sub(r"(?:\\u[0-9a-f]{4})+", lambda escapes: json.loads(f'"{escapes[0]}"'), text)


def converse(bench, access, dialect, operations, draw):
    """Requests of a client that changes its history: for each the items that it sent and the answer."""

    async def talk(http):
        items, said = [("system", "Be brief."), ("user", "Go")], []
        for operation in operations:
            items = changed(items, operation, draw)
            answer = await say(http, access, dialect, items, stream=False)
            said.append((items, answer))
            if operation != "repeat":
                items = [*items, answer, *reactions(answer, draw)]
        return said

    return bench.run(talk)


def check_recorded(bench, session, said):
    trajectory = session.main.trajectory
    assert verify(trajectory, CARD.vocab) == []
    sampled = sampled_nodes(trajectory)
    replies = [scripted_reply(prompt, sampling) for prompt, sampling in bench.client.calls]
    assert [node.tokens.tolist() for node in sampled] == replies  # each once, in the order of the calls
    assert all(node.mask.all() for node in sampled)
    assert sum(node.mask.sum() for node in trajectory.nodes) == sum(map(len, replies))
    declared = squeezed(TOKENIZER.decode(CHAT.declare_tools([TOOL])))
    for (prompt, _), request, (items, answer) in zip(bench.client.calls, session.requests, said, strict=True):
        index = request["node"]
        node, path = trajectory.nodes[index], trajectory.path_tokens(index)
        assert tuple(path[: len(prompt)]) == prompt and path[len(prompt) :].tolist() == node.tokens.tolist()
        assert node.logprobs.tolist() == [
            ScriptedClient.logprob(path[:i].tolist(), int(path[i])) for i in range(len(prompt), len(path))
        ]
        if request["dialect"].endswith("/messages") and items[-1][0] == "assistant" and not items[-1][3]:
            answer = (
                "assistant",
                items[-1][1] + items[-1][2] + answer[1],
                *answer[2:],
            )  # it continues the last message
            items = items[:-1]
        assert squeezed(TOKENIZER.decode(path.tolist())) == declared + plain_text([*items, answer])


TOOL = {"type": "function", "function": {"name": "bash", "description": "", "parameters": SCHEMA}}


@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_whatever_a_client_does_each_sampled_token_is_recorded_once(tmp_path_factory, dialect, examples):
    @settings(max_examples=examples)
    @given(operations=st.lists(st.sampled_from(OPERATIONS), min_size=3, max_size=7), seed=st.integers(0, 2**20))
    def check(operations, seed):
        folder = tmp_path_factory.mktemp("gateway")
        bench = Bench(scripted_reply, folder)
        access = bench.gateway.open(spec(key=(0, 0, seed)))
        said = converse(bench, access, dialect, operations, random.Random(seed))
        session = bench.gateway.session(access.rollout)
        check_recorded(bench, session, said)
        bench.gateway.release_folder()
        again = Gateway(bench.client, CARD, folder).session(access.rollout)
        assert [encode(t) for t in again.trajectories()] == [encode(t) for t in session.trajectories()]
        assert again.main.keys == session.main.keys

    check()


@pytest.mark.parametrize("examples", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_what_is_known_of_earlier_bodies_changes_nothing(dialect, examples):
    """Whatever a client edits: the same tokens, keys and drifts are recorded where every body is read alone."""

    @settings(max_examples=examples)
    @given(operations=st.lists(st.sampled_from(OPERATIONS), min_size=3, max_size=6), seed=st.integers(0, 2**20))
    def check(operations, seed):
        records = []
        for most in (bodies.MOST_KEPT, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(bodies, "MOST_KEPT", most)
                bench = Bench(scripted_reply)
                access = bench.gateway.open(spec(key=(0, 0, seed)))
                said = converse(bench, access, dialect, ["go on", *operations], random.Random(seed))
            session = bench.gateway.session(access.rollout)
            assert bool(session.bodies._kept) == bool(most)
            nodes = [(node.parent, node.tokens.tolist(), node.message) for node in session.main.trajectory.nodes]
            records.append((said, session.counts(), session.main.keys, nodes))
        assert records[0] == records[1]

    check()


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_a_client_that_only_appends_has_one_path(dialect):
    bench = Bench(scripted_reply)
    access = bench.gateway.open(spec())
    operations = ["go on", "rewrite arguments", "go on", "rewrite arguments", "go on"]
    converse(bench, access, dialect, operations, random.Random(1))
    session = bench.gateway.session(access.rollout)
    assert len(session.main.trajectory.leaves()) == 1
    counts = {"start": 1, "extend": 4, "requests": 5, "abandoned": 0, "tokens": session.sampled_tokens}
    assert session.counts() == counts
    masks = np.concatenate([node.mask for node in session.main.trajectory.nodes])
    assert masks.sum() == session.sampled_tokens


@pytest.mark.parametrize(
    ("operation", "drift"),
    [("strip thinking", "thought"), ("rewrite ids", "call id"), ("edit", "text"), ("summarise", "message")],
)
def test_what_a_client_rewrote_is_counted(operation, drift):
    bench = Bench(lambda prompt, sampling: reply_ids("hm", "Look", [("functions.bash:0", '{"cmd": "ls"}')]))
    access = bench.gateway.open(spec())
    draw = random.Random(0)
    draw.random = lambda: 0.0
    converse(bench, access, "chat/completions", ["go on", operation], draw)
    counts = bench.gateway.session(access.rollout).counts()
    assert counts["branch"] == 1 and counts[f"drift: {drift}"] == 1


ASKED = {"role": "user", "content": "List."}
BEGUN = {"role": "assistant", "content": '{"files":'}


@pytest.mark.parametrize(
    ("path", "begun"), [("chat/completions", BEGUN | {"partial": True}), ("messages", BEGUN), ("responses", None)]
)
def test_an_answer_that_the_client_begins_is_context_and_what_the_model_adds_is_recorded(path, begun):
    """Also where the same is asked again."""
    written = TOKENIZER.encode(" []}")
    bench = Bench(lambda prompt, sampling: [*written, CHAT.end])
    access = bench.gateway.open(spec(declares_tools=False))

    messages = [ASKED, begun or BEGUN | {"prefix": True}]
    body = {"model": "any", "input" if path == "responses" else "messages": messages}
    for _ in range(2):
        bench.run(lambda http: posted(http, access, path, body | ({"max_tokens": 9} if path == "messages" else {})))
    trajectory = bench.gateway.session(access.rollout).main.trajectory
    assert [request["kind"] for request in bench.gateway.session(access.rollout).requests] == ["start", "repeat"]
    head = kimi.text_of(trajectory.path_tokens(trajectory.leaves()[-1]), TOKENIZER)
    assert head.endswith('<|im_assistant|>assistant<|im_middle|><think></think>{"files": []}<|im_end|>')
    assert [node.tokens.tolist() for node in trajectory.nodes if node.mask.any()] == [[*written, CHAT.end]] * 2
    assert verify(trajectory, CARD.vocab) == []


def test_results_keep_the_id_that_the_model_sampled_and_fields_that_nobody_reads_are_listed():
    bench = Bench(lambda prompt, sampling: reply_ids("hm", "", [("bash", "")]))
    access = bench.gateway.open(spec())

    async def talk(http):
        body = {"model": "any", "tools": [TOOL], "messages": [ASKED]}
        [choice] = (await posted(http, access, "chat/completions", body))["choices"]
        message = choice["message"]
        [call] = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "a b", "seconds": 1, "is_error": True}
        await posted(http, access, "chat/completions", body | {"messages": [ASKED, message, result, ASKED]})
        return call

    call = bench.run(talk)
    assert call["function"] == {"name": "bash", "arguments": "{}"}
    session = bench.gateway.session(access.rollout)
    assert [request["kind"] for request in session.requests] == ["start", "extend"]
    assert session.requests[1]["left_out"] == ["messages[2].seconds"]
    text = kimi.text_of(session.main.trajectory.path_tokens(session.main.trajectory.leaves()[0]), TOKENIZER)
    assert f"## Return of {call['id']}\nError: a b<|im_end|>" in text
    assert not no_failed_call(session.main.trajectory)
