"""Demonstrations with declared tools are conversations of chat formats with tools."""

import json

from absl import flags
import pytest

from k2jax.agents.registry import toolsets
from k2jax.agents.toolsets.calling import Toolbox
from k2jax.data.chat_records import messages_and_tools
from k2jax.data.chat_rendering import branches
from k2jax.tasks import demonstrate
from k2jax.text import chat_format, load_tokenizer
from tests.refusal import refused
from tests.text import kimi, qwen, test_chat


def records(tmp_path, *arguments):
    values, path = flags.FlagValues(), tmp_path / "calls.jsonl"
    demonstrate.define(values)
    values(["demonstrate", f"--to={path}", "--count=8", "--direct=0", *arguments])
    demonstrate.main(values)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("dataset", "tools"), [("tool_use", ["calculator", "store"]), ("commands", ["shell"]), ("expressions", None)]
)
def test_calls_have_arguments_by_name_that_the_declared_tools_take(tmp_path, dataset, tools):
    arguments = ["--kinds=kv2"] if dataset == "tool_use" else []
    for record in records(tmp_path, f"--dataset={dataset}", "--declare", *arguments):
        declared = record["tools"]
        if tools:
            assert declared == Toolbox([toolsets.make(name) for name in tools]).tools
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in declared}
        calls = [call["function"] for m in record["messages"] for call in m.get("tool_calls", ())]
        assert calls
        for call in calls:
            assert set(schemas[call["name"]]["required"]) <= set(json.loads(call["arguments"]))


def test_several_problems_are_one_conversation_that_every_format_with_tools_renders(tmp_path):
    written = records(tmp_path, "--dataset=tool_use", "--kinds=calc1", "--declare", "--turns=3")
    questions = [[m["content"] for m in record["messages"] if m["role"] == "user"] for record in written]
    assert [len(each) for each in questions] == [3, 3, 2] and len({text for each in questions for text in each}) == 8
    for chat in (qwen.QWEN, qwen.HERMES, qwen.LLAMA_3, test_chat.KIMI):
        [builder] = branches(*messages_and_tools(written[0]), chat)
        trained = [token for token, mark in zip(builder.tokens, builder.by_assistant, strict=True) if mark]
        assert kimi.text_of(trained, chat._tokenizer).count("operation") == 3


def test_a_vocabulary_of_demonstrations_chooses_qwens_format_and_keeps_digits_apart(tmp_path):
    arguments = ["--dataset=tool_use", "--kinds=calc1", "--declare", f"--tokenizer={tmp_path}", "--vocab=400"]
    [record, *_] = records(tmp_path, *arguments)
    tokenizer = load_tokenizer(tmp_path)
    chat = chat_format(tokenizer)
    [builder] = branches(*messages_and_tools(record), chat)
    [byte_builder] = branches(*messages_and_tools(record), qwen.HERMES)
    assert type(chat).__name__ == "HermesChat" and tokenizer.vocab_size <= 400
    assert len(tokenizer.encode("1234567890")) == 10 and len(builder.tokens) < len(byte_builder.tokens)


def test_problems_of_other_tools_are_not_one_conversation(tmp_path):
    with refused("have different tools"):
        records(tmp_path, "--dataset=tool_use", "--declare", "--turns=8")
