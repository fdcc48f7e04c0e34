"""Demonstrations for chat formats with tools: declared tools, arguments by name, several problems in a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import itertools
import json
import re
from typing import Any

from k2jax.agents.registry import toolsets
from k2jax.agents.task import Task
from k2jax.agents.toolsets.calling import positional
from k2jax.errors import UserError
from k2jax.text import Tokenizer, byte_tokenizer, chat_format, render_history, train_bpe
from k2jax.text.hermes_chat import HERMES_TOKENS, RESULT_TOKENS

_SAMPLE = 200
"""Conversations that a vocabulary is trained on."""
_DIGITS = re.compile("[0-9]")
Record = Mapping[str, Any]
"""A conversation: ``messages``, and ``tools`` where it declares some."""


def with_declared_tools(tasks: Iterable[Task], records: Iterable[Record]) -> Iterator[Record]:
    """The demonstrations of tasks with the declarations of their tools, and with arguments by the names of these.

    Args:
        tasks: what is demonstrated.
        records: one for each task, whose calls may have arguments without names, as the compact format has them.

    Raises:
        UserError: a toolset is unknown.
    """
    declared: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for task, record in zip(tasks, records, strict=True):
        if task.tools not in declared:
            declared[task.tools] = [tool for text in task.tools for tool in toolsets.make(text).tools]
        tools = declared[task.tools]
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        messages = [_named_arguments(message, schemas) for message in record["messages"]]
        yield {"messages": messages} | ({"tools": tools} if tools else {})


def joined_turns(records: Iterable[Record], turns: int) -> Iterator[Record]:
    """The demonstrations, so many in a conversation, one after the other; the last one may have fewer.

    Raises:
        UserError: neighbouring demonstrations declare other tools.
    """
    joined: list[Record] = []
    for record in records:
        if joined and record.get("tools") != joined[0].get("tools"):
            raise UserError("the problems of a conversation have different tools; choose --kinds that have the same")
        joined.append(record)
        if len(joined) == turns:
            yield _conversation(joined)
            joined = []
    if joined:
        yield _conversation(joined)


def chat_tokenizer(records: Iterable[Record], vocab: int) -> Tokenizer:
    """Trains a vocabulary with the special tokens of Qwen2.5's chat format on some demonstrations.

    Digits stay apart, so that a small model learns numbers by their digits.

    Args:
        records: with declared tools; a sample of them is read.
        vocab: number of entries.

    Raises:
        UserError: ``vocab`` is too small.
    """
    special = (*HERMES_TOKENS, *RESULT_TOKENS)
    tokenizer = byte_tokenizer(special)
    chat, texts = chat_format(tokenizer), []
    for record in itertools.islice(records, _SAMPLE):
        builder = render_history(chat, record["messages"], record.get("tools"))
        texts.append(_DIGITS.sub(" ", tokenizer.decode(builder.tokens)))
    return train_bpe(texts, vocab, special)


def _conversation(records: list[Record]) -> Record:
    return {**records[0], "messages": [message for record in records for message in record["messages"]]}


def _named_arguments(message: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if isinstance(arguments, str):
            arguments = positional(arguments, schemas[name])
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
