"""Formats, tool choices and strict tools as grammars: what random weights write under them is never malformed."""

import json

import jsonschema
import numpy as np
import pytest

from k2jax.agents.api import ApiError, ModelCard, anthropic, chat_completions, completions, responses
from k2jax.inference.constraints import start_constraint
from k2jax.text import chat_format
from k2jax.text.answers import AFTER_END, NO_BEGIN, STRAY_TOKEN
from k2jax.text.chatml import CHATML_TOKENS
from tests.agents.api.sample import NAME
from tests.text import kimi, qwen
from tests.text.test_constrained import walk

FIND = {
    "type": "object", "required": ["query", "kind"], "additionalProperties": False,
    "properties": {"query": {"type": "string", "maxLength": 8}, "kind": {"enum": ["web", "file"]},
                   "limit": {"type": "integer", "minimum": 1, "maximum": 20}},
}  # fmt: skip
SCHEMAS = {"find_it": FIND, "wait": {"type": "object", "properties": {}, "additionalProperties": False}}
USER = [{"role": "user", "content": "Hi"}]
TOKENIZERS = {
    "kimi": kimi.tokenizer(), "thinking": kimi.thinking_tokenizer(), "qwen": qwen.tokenizer(),
    "hermes": qwen.tokenizer((*qwen.CHATML, *qwen.TOOLS)), "llama": qwen.tokenizer(qwen.LLAMA),
}  # fmt: skip
CARDS = {name: ModelCard(NAME, t, t.vocab_size, 4096, chat=chat_format(t)) for name, t in TOKENIZERS.items()}
OPENINGS = ("<|tool_calls_section_begin|>", "<tool_call>", "</think>")
OF_FREE_TEXT = {NO_BEGIN, STRAY_TOKEN, AFTER_END}
CHATML = qwen.tokenizer((*CHATML_TOKENS, "<|endoftext|>"))


def tools(strict=None):
    flags = {} if strict is None else {"strict": strict}
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, **flags}}
        for name, schema in SCHEMAS.items()
    ]


def ask(card, **fields):
    return chat_completions.DIALECT.parse({"model": NAME, "messages": USER, **fields}, card)


def answers(card, request, count):
    """Messages that random draws come to under the constraint of a request, and the parsers that read them."""
    for seed in range(count):
        state = start_constraint(request.sampling, card.grammars, card.vocab)
        likely = [card.tokenizer.special_id(name) for name in OPENINGS if card.tokenizer.has_special(name)]
        ids = walk(state, np.random.default_rng(seed), card.tokenizer, request.sampling.stop_tokens, likely)
        if ids is not None:
            parser = card.chat.parser(request.thinking)
            parser.feed_ids([*ids, card.chat.end])
            yield parser.message, parser


def check_calls(message, names=tuple(SCHEMAS)):
    for call in message.get("tool_calls", ()):
        assert call["function"]["name"] in names
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return len(message.get("tool_calls", ()))


@pytest.mark.parametrize("count", [5, pytest.param(2200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CARDS)
def test_required_calls_are_never_malformed(name, count):
    """10,000 calls in all of the long version, none of which is malformed."""
    card, calls = CARDS[name], 0
    for message, parser in answers(card, ask(card, tools=tools(), tool_choice="required"), count):
        number = check_calls(message)
        assert number and not parser.problems and not message["content"].strip()
        calls += number
    assert calls >= (2000 if count > 1000 else count // 2)


@pytest.mark.parametrize("name", CARDS)
def test_calls_of_strict_tools_obey_while_text_is_free(name):
    card, calls, texts = CARDS[name], 0, 0
    for message, parser in answers(card, ask(card, tools=tools(strict=True)), 5):
        calls += check_calls(message)
        texts += bool(message["content"])
        assert not set(parser.problems) - OF_FREE_TEXT
    assert calls or texts


@pytest.mark.parametrize("name", ["kimi", "qwen"])
def test_a_named_tool_is_the_only_one(name):
    choice = {"type": "function", "function": {"name": "wait"}}
    request = ask(CARDS[name], tools=tools(), tool_choice=choice, parallel_tool_calls=False)
    for message, _ in answers(CARDS[name], request, 2):
        assert check_calls(message, ("wait",)) == 1


@pytest.mark.parametrize("name", ["thinking", "llama"])
def test_a_format_of_the_text_follows_the_reasoning(name):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": FIND}}
    request, found = ask(CARDS[name], response_format=form), 0
    for message, parser in answers(CARDS[name], request, 3):
        jsonschema.validate(json.loads(message["content"]), FIND)
        assert not parser.problems
        found += 1
    assert found


def test_what_asks_for_nothing_costs_nothing():
    free = [{}, {"tools": tools()}, {"tools": tools(strict=False)}, {"response_format": {"type": "text"}}]
    free += [{"tools": tools(), "tool_choice": "none"}, {"tools": tools(True), "tool_choice": "none"}]
    assert all(ask(CARDS["kimi"], **fields).sampling.constraint is None for fields in free)


def test_each_dialect_says_it_in_its_own_words():
    """The same constraint, whichever interface a client knows."""
    card = CARDS["kimi"]

    def read(module, **fields):
        named = {"input" if module is responses else "messages": USER, "model": NAME, **fields}
        return module.DIALECT.parse(named, card).sampling.constraint

    flat = [{"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    theirs = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    limit = {"max_tokens": 9}
    required = read(chat_completions, tools=tools(), tool_choice="required")
    assert required == read(responses, tools=flat, tool_choice="required")
    assert required == read(anthropic, tools=theirs, tool_choice={"type": "any"}, **limit)
    named = read(
        chat_completions, tools=tools(), tool_choice={"type": "function", "function": {"name": "wait"}},
        parallel_tool_calls=False,
    )  # fmt: skip
    one = {"type": "function", "name": "wait"}
    assert named == read(responses, tools=flat, tool_choice=one, parallel_tool_calls=False)
    one = {"type": "tool", "name": "wait", "disable_parallel_tool_use": True}
    assert named == read(anthropic, tools=theirs, tool_choice=one, **limit) != required
    form = {"type": "json_schema", "name": "x", "schema": FIND}
    value = read(chat_completions, response_format={"type": "json_schema", "json_schema": form})
    assert value == read(responses, text={"format": form}) == read(chat_completions, guided_json=FIND)
    assert value == read(anthropic, output_config={"format": {"type": "json_schema", "schema": FIND}}, **limit)
    assert value == read(chat_completions, structured_outputs={"json": FIND, "regex": None})
    assert value == read(completions, prompt="x", guided_json=FIND, messages=None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"tools": [{"function": {"name": "a b", "strict": True}}]}, "tools"),
        ({"tools": [{"function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]}, "tools"),
        ({"guided_regex": "a", "messages": [*USER, {"role": "assistant", "content": "b", "partial": True}]},
         "guided_regex"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(fields, param):
    with pytest.raises(ApiError) as refused:
        ask(CARDS["kimi"], **fields)
    assert (refused.value.status, refused.value.param) == (400, param) and "\n" not in refused.value.message


def test_a_format_without_calls_still_has_formats_of_text():
    card = ModelCard(NAME, CHATML, CHATML.vocab_size, 4096, chat=chat_format(CHATML))
    assert ask(card, guided_regex="[0-9]").sampling.constraint
    with pytest.raises(ApiError):
        ask(card, tools=tools(), tool_choice="required")
