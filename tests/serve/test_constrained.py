"""Official clients' structured outputs over the real engine with random weights: every answer that ends is right."""

import contextlib
import json
from typing import Literal

import anthropic
import jax
import jsonschema
import openai
import pydantic
import pytest

from k2jax.inference.engine import Engine
from k2jax.model import model_specs
from k2jax.params import initialize
from tests.agents.api.sample import NAME
from tests.serve.fakes import live
from tests.serve.test_engine import TINY, TOKENIZER

HI = [{"role": "user", "content": "Hi"}]
SEEDS = range(4)


class Answer(pydantic.BaseModel):
    kind: Literal["good", "bad"]
    count: Literal[1, 2, 3]


SCHEMA = {
    "type": "object", "required": ["unit", "days"], "additionalProperties": False,
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "maximum": 9, "minimum": 0}},
}  # fmt: skip
FUNCTION = {"name": "get_weather", "parameters": SCHEMA, "strict": True}


@contextlib.contextmanager
def serving(longest):
    params = initialize(model_specs(TINY), jax.random.key(0), TINY.init_std)
    sizes = {"slots": 4, "max_length": longest}
    with live(Engine(TINY, params, **sizes), TOKENIZER, vocab=TINY.vocab, max_length=longest) as running:
        yield running


@pytest.fixture(scope="module")
def server():
    """Its programs are those of ``test_engine``, but for masks."""
    with serving(160) as running:
        yield running


def test_openais_client_parses_what_its_models_describe(server):
    client = server.openai().with_options(timeout=120)
    found = 0
    for seed in SEEDS:
        try:
            whole = client.chat.completions.parse(
                model=NAME, messages=HI, response_format=Answer, seed=seed, logprobs=True
            )
        except openai.LengthFinishReasonError:
            continue
        [choice] = whole.choices
        assert isinstance(choice.message.parsed, Answer) and choice.finish_reason == "stop"
        assert json.loads(choice.message.content) == choice.message.parsed.model_dump()
        found += 1
    assert found
    for _ in range(12):
        with contextlib.suppress(pydantic.ValidationError):  # the client reads answers that a limit has ended, too
            answer = client.responses.parse(model=NAME, input="Hi", text_format=Answer, max_output_tokens=100)
            assert isinstance(answer.output_parsed, Answer) and answer.status == "completed"
            break
    else:
        raise AssertionError("no answer has ended")


@pytest.mark.slow  # the declaration of a tool takes a longer engine, and its programs
def test_required_calls_of_openais_and_anthropics_clients():
    with serving(512) as server:
        check_calls(server)


def check_calls(server):
    client = server.openai().with_options(timeout=120)
    tool = {"type": "function", "function": FUNCTION}
    calls = []
    for seed in SEEDS:
        options = {"model": NAME, "messages": HI, "tools": [tool], "seed": seed, "max_tokens": 100}
        [choice] = client.chat.completions.create(**options, tool_choice="required").choices
        if choice.finish_reason == "tool_calls":
            calls += [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    theirs = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)
    shown = {"name": "get_weather", "input_schema": SCHEMA}
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    for _ in SEEDS:
        message = theirs.messages.create(model=NAME, max_tokens=100, messages=HI, tools=[shown], tool_choice=choice)
        if message.stop_reason == "tool_use":
            [call] = [block for block in message.content if block.type == "tool_use"]
            calls.append((call.name, call.input))
    assert len(calls) >= 4
    for name, arguments in calls:
        assert name == "get_weather"
        jsonschema.validate(arguments, SCHEMA)


def test_guided_completions_and_refusals(server):
    client = server.openai().with_options(timeout=120)
    guided = {"structured_outputs": {"regex": "[ab]{3}"}}
    answer = client.completions.create(model=NAME, prompt="x", max_tokens=8, extra_body=guided)
    assert set(answer.choices[0].text) <= set("ab") and len(answer.choices[0].text) == 3
    assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="Unimplemented keys"):
        client.completions.create(model=NAME, prompt="x", extra_body={"guided_json": {"not": {}}})
