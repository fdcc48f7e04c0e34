"""Arbitrary requests: none of them is a 5xx or a hang, and every refusal has OpenAI's shape."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from tests.api.sample import CALLING, NAME, TEXT, TOKENIZER, TOOLS, answer_ids
from tests.serve.fakes import FakeEngine, live

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
SMALL = st.integers(-1, 5)
GOOD = {
    "model": st.just(NAME),
    "prompt": st.text(max_size=5) | st.lists(st.integers(0, 300) | st.text(max_size=3), max_size=4) | st.lists(
        st.lists(st.integers(-1, TOKENIZER.vocab_size), max_size=3), max_size=2
    ),
    "max_tokens": SMALL, "max_completion_tokens": SMALL, "n": SMALL, "best_of": SMALL,
    "logprobs": SMALL | st.booleans(),
    "top_logprobs": SMALL, "echo": st.booleans(), "stream": st.booleans(), "seed": st.integers(),
    "stop": st.text(max_size=3) | st.lists(st.sampled_from(["quick", " ", "月"]), max_size=5),
    "temperature": st.floats(0, 3), "top_p": st.floats(0, 1), "top_k": SMALL, "min_p": st.floats(0, 1),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "return_token_ids": st.booleans(), "add_special_tokens": st.booleans(), "tools": st.just(TOOLS) | st.just([]),
    "tool_choice": st.sampled_from(["auto", "none", "required"]), "user": st.text(max_size=3),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]), "logit_bias": st.just({}),
}  # fmt: skip
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "boss"])
CALLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text(max_size=3)}) | JSON},
        optional={"id": st.text(max_size=3) | JSON},
    ),
    max_size=2,
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES, "content": st.text(max_size=8) | st.none() | JSON},
    optional={"tool_calls": CALLS | JSON, "tool_call_id": JSON, "name": JSON},
)
GOOD["messages"] = st.lists(MESSAGE, max_size=4)


@st.composite
def bodies(draw, needed):
    """Mostly sensible fields, some arbitrary values, and a name that nobody knows now and then."""
    body = {"model": NAME, needed: draw(GOOD[needed])}
    for name in draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=6, unique=True)):
        body[name] = draw(GOOD[name] if draw(st.integers(0, 9)) else JSON)
    if not draw(st.integers(0, 19)):
        body[draw(st.text(max_size=5))] = draw(JSON)
    if needed == "prompt":
        for name in ("messages", "tools", "tool_choice", "max_completion_tokens", "top_logprobs"):
            body.pop(name, None)
    elif draw(st.integers(0, 19)):
        for name in ("prompt", "echo", "best_of", "add_special_tokens"):
            body.pop(name, None)
    return body


def script(request):
    return CALLING if "get_weather" in TOKENIZER.decode(request.prompt) else answer_ids(TEXT)


@pytest.fixture(scope="module")
def server():
    with live(FakeEngine(script), TOKENIZER, vocab=TOKENIZER.vocab_size) as running:
        yield running
        running.wait_until_idle()


def check(server, path, content):
    response = server.http.post(
        f"/v1/{path}", content=content, headers={"Content-Type": "application/json"}, timeout=10
    )
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif response.headers["content-type"].startswith("text/event-stream"):
        *events, end = response.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        assert all("error" not in json.loads(event.removeprefix("data: ")) for event in events)
    else:
        assert all(choice["finish_reason"] for choice in response.json()["choices"])
    return response.status_code


@pytest.mark.parametrize(("path", "needed"), [("completions", "prompt"), ("chat/completions", "messages")])
def test_requests_of_any_content(server, path, needed):
    counts = {}

    @settings(max_examples=400)
    @given(bodies(needed))
    def fuzz(body):
        status = check(server, path, json.dumps(body).encode())
        counts[status] = counts.get(status, 0) + 1

    fuzz()
    assert counts[200] >= 40 and counts[400] >= 40, counts  # both sides were tried


@settings(max_examples=100)
@given(JSON)
def test_bodies_of_any_json(server, body):
    for path in ("completions", "chat/completions"):
        assert check(server, path, json.dumps(body).encode()) in (400, 404)


@settings(max_examples=60)
@given(st.binary(max_size=60))
def test_bodies_of_any_bytes(server, body):
    assert check(server, "completions", body) == 400
