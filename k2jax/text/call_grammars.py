"""Grammars of an answer that may call tools: each call obeys the chat format and the schema of its tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.text.common_chat import ChatFormat
from k2jax.text.constrained.rules import CallRules, checked_name, object_schema, schema_rule

_NO_CALL = r"/([^{\s](?s:.)*)?/"
"""Text that a format without tokens of calls does not read as one."""


def tool_rules(chat: ChatFormat, tools: Sequence[Mapping[str, Any]], name: str = "", many: bool = True) -> CallRules:
    """The calls of tools as rules.

    Args:
        chat: the format of calls.
        tools: in OpenAI's chat format; the arguments of one with ``strict: false`` are any object.
        name: of the only tool that may be called; empty for all.
        many: whether an answer may have several calls.

    Raises:
        UserError: the format has no calls, or a name or schema cannot be compiled.
    """
    listed, rules = [], []
    for number, tool in enumerate(tools):
        function = tool["function"]
        if name in ("", function["name"]):
            field = f"tools[{number}]"
            schema = {} if function.get("strict") is False else function.get("parameters")
            listed.append((checked_name(function["name"]), f"arguments{number}"))
            rules.append(schema_rule(f"arguments{number}", object_schema(schema, field), field))
    calls = chat.call_rules(listed, many)
    return calls._replace(text=calls.text + "".join(rules))


def optional_calls(rules: CallRules, before: str) -> tuple[str, int | None, tuple[int, ...]]:
    """The grammar of an answer that is free to call or not; the token behind which it applies; ids banned before that.

    Args:
        rules: of ``tool_rules``.
        before: what stands before the text of an answer, see ``ChatFormat.reasoning_rule``.
    """
    if rules.opening is not None:
        return "start: rest\n" + rules.text, rules.opening, rules.banned
    return f"start: {before} (calls | {_NO_CALL})\n{rules.text}", None, ()
