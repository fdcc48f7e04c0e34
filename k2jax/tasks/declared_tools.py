"""Demonstrations for chat formats with tools: declared tools, arguments by name, several problems in a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import json
from typing import Any

from k2jax.agents.registry import toolsets
from k2jax.agents.task import Task
from k2jax.agents.toolsets.calling import positional
from k2jax.errors import UserError

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
