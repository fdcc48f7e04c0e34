"""Arbitrary requests: none of them is a 5xx or a hang, and every refusal has its dialect's shape."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from tests.agents.api.sample import NAME, TOKENIZER, TOOLS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
SMALL = st.integers(-1, 5)
TEXTS = st.text(max_size=8)
SHARED = {
    "model": st.just(NAME), "stream": st.booleans(), "seed": st.integers(), "n": SMALL,
    "temperature": st.floats(0, 3), "top_p": st.floats(0, 1), "top_k": SMALL, "min_p": st.floats(0, 1),
    "return_token_ids": st.booleans(), "user": st.text(max_size=3),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "5"]), st.integers(-100, 100)),
    "ignore_eos": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
}  # fmt: skip
STOP = st.text(max_size=3) | st.lists(st.sampled_from(["quick", " ", "月"]), max_size=5)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "boss"])
CALLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text(max_size=3)}) | JSON},
        optional={"id": st.text(max_size=3) | JSON},
    ),
    max_size=2,
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES, "content": TEXTS | st.none() | JSON},
    optional={"tool_calls": CALLS | JSON, "tool_call_id": JSON, "name": JSON},
)


def items(kinds, fields):
    """Blocks or items of these kinds, with some of the fields that some kinds have; fields may hold anything."""
    values = {name: good | JSON for name, good in fields.items()}
    return st.lists(st.fixed_dictionaries({"type": st.sampled_from(kinds)}, optional=values), max_size=3)


PARTS = items(["text", "input_text", "output_text", "refusal", "input_image", "x"], {"text": TEXTS, "image_url": TEXTS})
BLOCK_FIELDS = {"text": TEXTS, "thinking": TEXTS, "id": TEXTS, "name": TEXTS, "tool_use_id": TEXTS, "content": TEXTS}
BLOCKS = items(
    ["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "video"],
    BLOCK_FIELDS | {"input": JSON, "source": st.fixed_dictionaries({"type": st.just("base64")}) | JSON},
)
ITEMS = items(
    ["message", "function_call", "function_call_output", "reasoning", "web_search_call"],
    {"role": ROLES, "content": TEXTS | PARTS, "call_id": TEXTS, "name": TEXTS, "arguments": TEXTS, "output": TEXTS,
     "summary": PARTS},
)  # fmt: skip
TURN = st.fixed_dictionaries({"role": ROLES, "content": TEXTS | BLOCKS | JSON})
FLAT_TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
NAMED_TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
MODES = ["auto", "none", "required"]
GOOD = {
    "completions": SHARED | {
        "prompt": st.text(max_size=5) | st.lists(st.integers(0, 300) | st.text(max_size=3), max_size=4) | st.lists(
            st.lists(st.integers(-1, TOKENIZER.vocab_size), max_size=3), max_size=2
        ),
        "max_tokens": SMALL, "best_of": SMALL, "logprobs": SMALL | st.booleans(), "echo": st.booleans(), "stop": STOP,
        "add_special_tokens": st.booleans(),
    },
    "chat/completions": SHARED | {
        "messages": st.lists(MESSAGE, max_size=4), "max_tokens": SMALL, "max_completion_tokens": SMALL,
        "logprobs": SMALL | st.booleans(), "top_logprobs": SMALL, "stop": STOP, "tools": st.just(TOOLS) | st.just([]),
        "tool_choice": st.sampled_from(MODES),
        "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    },
    "responses": SHARED | {
        "input": TEXTS | ITEMS, "max_output_tokens": SMALL, "instructions": TEXTS, "tools": st.just([FLAT_TOOL]),
        "tool_choice": st.sampled_from(MODES), "reasoning": st.just({"effort": "low"}), "store": st.booleans(),
    },
    "messages": SHARED | {
        "messages": st.lists(TURN, max_size=4), "max_tokens": SMALL, "system": TEXTS | PARTS, "stop_sequences": STOP,
        "tools": st.just([NAMED_TOOL]), "tool_choice": st.fixed_dictionaries({"type": st.sampled_from(MODES)}),
        "thinking": st.just({"type": "enabled"}), "metadata": st.just({}),
    },
}  # fmt: skip
NEEDED = {"completions": "prompt", "chat/completions": "messages", "responses": "input", "messages": "messages"}


@st.composite
def bodies(draw, path):
    """Mostly sensible fields, some arbitrary values, and a name that nobody knows now and then."""
    good = GOOD[path]
    body = {"model": NAME, NEEDED[path]: draw(good[NEEDED[path]])}
    for name in draw(st.lists(st.sampled_from(sorted(good)), max_size=6, unique=True)):
        body[name] = draw(good[name] if draw(st.integers(0, 9)) else JSON)
    if not draw(st.integers(0, 19)):
        body[draw(st.text(max_size=5))] = draw(JSON)
    return body


ERROR = {"message", "type", "param", "code"}
END = {
    "completions": "[DONE]", "chat/completions": "[DONE]", "responses": '"type":"response.', "messages": "message_stop"
}  # fmt: skip


def check(server, path, content):
    response = server.http.post(
        f"/v1/{path}", content=content, headers={"Content-Type": "application/json"}, timeout=10
    )
    assert response.status_code < 500, response.text
    anthropic = path.startswith("messages")
    if response.status_code != 200:
        assert set(response.json()["error"]) == ({"type", "message"} if anthropic else ERROR)
    elif response.headers["content-type"].startswith("text/event-stream"):
        events = [event.rpartition("data: ")[2] for event in response.text.strip().split("\n\n")]
        assert END[path] in events[-1]
        assert all("error" not in json.loads(event) or '"error":null' in event for event in events if event != "[DONE]")
    else:
        body = response.json()
        ends = [choice["finish_reason"] for choice in body.get("choices", ())]
        assert all(ends or [body.get("status") or body.get("stop_reason") or body.get("input_tokens")])
    return response.status_code


@pytest.mark.parametrize("examples", [40, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", list(GOOD))
def test_requests_of_any_content(server, path, examples):
    counts = {}

    @settings(max_examples=examples)
    @given(bodies(path))
    def fuzz(body):
        status = check(server, path, json.dumps(body).encode())
        counts[status] = counts.get(status, 0) + 1
        if path == "messages":
            check(server, "messages/count_tokens", json.dumps(body).encode())

    fuzz()
    assert counts[200] >= examples / 20 and counts[400] >= examples / 20, counts  # both sides were tried


@settings(max_examples=25)
@given(JSON)
def test_bodies_of_any_json(server, body):
    for path in GOOD:
        assert check(server, path, json.dumps(body).encode()) in (400, 404)


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_bodies_of_any_bytes(server, body):
    assert check(server, "completions", body) == 400
