"""Episodes with tools in the formats of Qwen and Llama 3: sampled ids stay as they are, results follow their calls."""

import pytest

from tests.agents.test_tool_environment import same
from tests.agents.tool_episodes import chat_client, episode, task
from tests.text import kimi, qwen

CHATS = {"qwen3": (qwen.QWEN, qwen.QWEN3), "hermes": (qwen.HERMES, (*qwen.CHATML, *qwen.TOOLS))}
CHATS["llama"] = (qwen.LLAMA_3, qwen.LLAMA)
CALLS = [("get", {"key": "a"}), ("get", {"key": "x"}), ("calc", {"operation": "12+30"})]


def sayer(chat):
    """What the model says to a prompt: all calls at once, or in Llama's format one after another; then the answer."""
    if chat is qwen.LLAMA_3:
        return lambda text: ("", [CALLS[done]]) if (done := text.count("ipython<")) < len(CALLS) else ("42", [])
    return lambda text: ("42", []) if "<tool_response>" in text else ("I look.", CALLS)


@pytest.mark.parametrize("name", list(CHATS))
def test_an_episode_answers_calls_in_order_and_samples_after_what_was_sampled(name):
    chat, names = CHATS[name]
    tokenizer = qwen.tokenizer(names)
    client = chat_client(sayer(chat), chat, tokenizer)
    result = episode(client, task(), chat=chat, tokenizer=tokenizer, max_tokens=400)
    assert (result.status, result.answer) == ("finished", "42")
    results = [node.message for node in result.nodes if node.message["role"] == "tool"]
    assert [message["content"] for message in results] == ["12", "Error: there is no key 'x'", "42"]
    ids = [call["id"] for node in result.nodes if node.turn >= 0 for call in node.message.get("tool_calls", ())]
    assert ids == [message["tool_call_id"] for message in results] == [
        "functions.get:0", "functions.get:1", "functions.calc:2",
    ]  # fmt: skip
    sampled = [node for node in result.nodes if node.turn >= 0]
    for node, (prompt, _) in zip(sampled, client.calls, strict=True):
        assert list(prompt) == result.path_tokens(node.parent).tolist() and node.mask.all()
    assert not any(node.mask.any() for node in result.nodes if node.turn < 0)
    text = kimi.text_of(result.path_tokens(len(result.nodes) - 1).tolist(), tokenizer)
    if name != "llama":
        assert text.count("<|im_start|>user\n<tool_response>") == 1 and text.count("<tool_response>") == 3
        assert "</tool_response><|im_end|>\n<|im_start|>assistant\n" in text


@pytest.mark.parametrize("name", list(CHATS))
def test_an_episode_that_pauses_goes_on_as_the_whole_one(name):
    chat, names = CHATS[name]
    tokenizer = qwen.tokenizer(names)
    options = {"chat": chat, "tokenizer": tokenizer, "max_tokens": 400}
    whole = episode(chat_client(sayer(chat), chat, tokenizer), task(), **options)
    pieces = None
    while pieces is None or pieces.status == "unfinished":
        client = chat_client(sayer(chat), chat, tokenizer)
        pieces = episode(client, task(), trajectory=pieces, token_cap=40, **options)
    assert same(whole, pieces)
