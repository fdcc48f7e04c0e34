"""Qwen's and Llama 3's formats on all routes: calls, reasoning and answers that are begun, whole and streamed."""

import json

import pytest

from k2jax.agents.api import ModelCard
from tests.agents.api.sample import NAME, USER
from tests.agents.api.test_message_fields import BEGUN, CALL, ROUTES, answered, body, prompt
from tests.text import qwen
from tests.text.qwen import CHATML, LLAMA, QWEN3, TOOLS

QWEN = ModelCard(NAME, qwen.tokenizer(QWEN3), 800, 2048, chat=qwen.QWEN)
HERMES = ModelCard(NAME, qwen.tokenizer((*CHATML, *TOOLS)), 800, 2048, chat=qwen.HERMES)
LLAMA_3 = ModelCard(NAME, qwen.tokenizer(LLAMA), 800, 2048, chat=qwen.LLAMA_3)
CALLED = ["<tool_call>", '\n{"name": "f", "argu', 'ments": {"a": ', '"}"}}\n', "</tool_call>"]
ANSWERS = {
    "qwen3": (QWEN, ["<think>", "\nhm\n", "</think>", "\n\nLook.\n", *CALLED, "\n", *CALLED, "<|im_end|>"]),
    "hermes": (HERMES, ["Look.\n", *CALLED, "\n", *CALLED, "<|im_end|>"]),
    "llama": (LLAMA_3, ['{"name": "f", "para', 'meters": {"a": ', '"}"}}', "<|eot_id|>"]),
}
DECLARED = {
    "chat": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "responses": [{"type": "function", "name": "f", "parameters": {}}],
    "messages": [{"name": "f", "input_schema": {}}],
}


def streamed_text(value, names):
    """Texts under some names in the pieces of a stream."""
    if isinstance(value, dict):
        return "".join(v if k in names and isinstance(v, str) else streamed_text(v, names) for k, v in value.items())
    if isinstance(value, tuple | list):
        return "".join(streamed_text(item, names) for item in value)
    return ""


@pytest.mark.parametrize("name", list(ANSWERS))
def test_calls_and_reasoning_of_an_answer_on_every_route(name):
    card, parts = ANSWERS[name]
    count, text = (1, "") if name == "llama" else (2, "Look.")
    whole, chunks = answered(parts, card=card, tools=DECLARED["chat"])
    message = whole["choices"][0]["message"]
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "f", "arguments": '{"a": "}"}'}] * count
    assert [call["id"] for call in message["tool_calls"]] == [f"functions.f:{i}" for i in range(count)]
    assert (message["content"] or "", message.get("reasoning_content")) == (text, "hm" if name == "qwen3" else None)
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert streamed_text(chunks, ["arguments"]) == '{"a": "}"}' * count
    assert streamed_text([c["choices"][0].get("delta") for c in chunks], ["content"]) == text
    output = answered(parts, "responses", card, tools=DECLARED["responses"])[0]["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(item["name"], json.loads(item["arguments"])) for item in calls] == [("f", {"a": "}"})] * count
    blocks = answered(parts, "messages", card, tools=DECLARED["messages"])[0]["content"]
    kinds = ["thinking"] * (name == "qwen3") + ["text"] * bool(text) + ["tool_use"] * count
    assert [block["type"] for block in blocks] == kinds and blocks[-1]["input"] == {"a": "}"}


@pytest.mark.parametrize("route", list(ROUTES))
def test_tools_are_declared_and_results_of_one_answer_are_one_message(route):
    history = {
        "chat": [*USER, {"role": "assistant", "tool_calls": [CALL, CALL | {"id": "call_2"}]},
                 {"role": "tool", "tool_call_id": "call_1", "content": "25"},
                 {"role": "tool", "tool_call_id": "call_2", "content": "26"}],
        "responses": [*USER, *({"type": "function_call", "call_id": i, "name": "f", "arguments": "{}"} for i in "ab"),
                      {"type": "function_call_output", "call_id": "a", "output": "25"},
                      {"type": "function_call_output", "call_id": "b", "output": "26"}],
        "messages": [*USER,
                     {"role": "assistant",
                      "content": [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in "ab"]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": text}
                                                  for i, text in (("a", "25"), ("b", "26"))]}],
    }[route]  # fmt: skip
    text = prompt(history, route, QWEN, tools=DECLARED[route])
    assert "<tools>\n{" in text and '"name": "f"' in text
    called = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    results = "<tool_response>\n25\n</tool_response>\n<tool_response>\n26\n</tool_response>"
    assert f"{called}\n{called}<|im_end|>\n<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n" in text
    assert prompt(history, route, HERMES, tools=DECLARED[route]) == text.replace("<think>\n\n</think>\n\n", "")


def test_a_client_turns_the_reasoning_off_by_the_name_of_the_models_template():
    options = {"chat_template_kwargs": {"enable_thinking": False}}
    assert prompt(USER, card=QWEN, **options).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert prompt(USER, card=QWEN).endswith("<|im_start|>assistant\n")
    whole, _ = answered(["Yes.", "<|im_end|>"], card=QWEN, **options)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize("route", list(ROUTES))
@pytest.mark.parametrize("name", list(ANSWERS))
def test_an_answer_that_is_begun_is_continued(name, route):
    card, message = ANSWERS[name][0], BEGUN | ({} if route == "messages" else {"partial": True})
    head = card.chat.direct_prompt
    [ids] = ROUTES[route].parse(body(route, [*USER, message]), card).prompts
    assert list(ids[-len(head) - len(card.tokenizer.encode('{"a":')) :]) == [*head, *card.tokenizer.encode('{"a":')]
