"""The grammar that an answer has to obey, from the fields of a request: formats, tool choices and strict tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import GenerationRequest
from k2jax.agents.api.tool_choice import AUTO, ToolChoice
from k2jax.client import TokenConstraint
from k2jax.errors import UserError, abbreviate
from k2jax.text.call_grammars import optional_calls, tool_rules
from k2jax.text.constrained import CallRules, choice_rule, regex_rule, schema_rule

_VALUE = "value"


class TextRule(NamedTuple):
    """The format of an answer's text.

    Attributes:
        rule: named ``value``; empty for any text.
        field: that it came from, for errors.
    """

    rule: str = ""
    field: str = ""


ANY_TEXT = TextRule()


def read_format(form: Any, field: str) -> TextRule:
    """Reads ``response_format``, or what other dialects have in its place.

    Args:
        form: an object of the type text, json_object or json_schema; None for text.
        field: for errors.

    Raises:
        ApiError: it is another format, or its schema is none.
    """
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return ANY_TEXT
    if kind == "json_object":
        return _rule(schema_rule, {"type": "object"}, field)
    if kind != "json_schema":
        raise unsupported(field, f"{field} must have the type text, json_object or json_schema, not {abbreviate(form)}")
    within = form.get("json_schema", form)  # the responses have the schema in the format itself
    if not isinstance(within, dict) or "schema" not in within:
        raise bad_request(field, f"{field} of the type json_schema needs a schema")
    return _rule(schema_rule, within["schema"], field)


def read_value(fields: Fields) -> TextRule:
    """Reads ``response_format``, and what vLLM has beside it: ``structured_outputs``, before that ``guided_json`` etc.

    A lenient reader leaves them where they are.

    Raises:
        ApiError: there are several, or one of another kind.
    """
    if fields.lenient:
        return ANY_TEXT
    makers = {"json": schema_rule, "regex": regex_rule, "choice": choice_rule}
    found = {f"guided_{kind}": (kind, value) for kind in makers if (value := fields.take(f"guided_{kind}")) is not None}
    outputs = fields.take("structured_outputs", {})
    if not isinstance(outputs, dict):
        raise invalid_value("structured_outputs", "an object", outputs)
    for kind, value in outputs.items():
        if kind not in makers:
            raise unsupported("structured_outputs", "structured_outputs must be one of json, regex and choice")
        found |= {} if value is None else {f"structured_outputs.{kind}": (kind, value)}
    read = [_rule(makers[kind], value, field) for field, (kind, value) in found.items()]
    form = read_format(fields.take("response_format"), "response_format")
    read += [form] if form.rule else []
    if len(read) > 1:
        raise bad_request(read[0].field, f"{' and '.join(each.field for each in read)} exclude each other")
    return read[0] if read else ANY_TEXT


def constrain(
    options: GenerationRequest,
    card: ModelCard,
    value: TextRule,
    tools: Sequence[Mapping[str, Any]] = (),
    choice: ToolChoice = AUTO,
    *,
    is_continued: bool = False,
) -> GenerationRequest:
    """Adds the grammar that an answer has to obey, compiled; an answer that is free costs nothing.

    Calls obey the template of the chat format, and each the schema of its tool, unless that says ``strict: false``.
    They do so where a call is required, a tool is strict, only one call is allowed or the text has a format.

    Args:
        options: how to answer.
        card: the served model.
        value: the format of the text.
        tools: that the model may call, in OpenAI's chat format.
        choice: of them.
        is_continued: whether the answer continues a message.

    Raises:
        ApiError: the grammar cannot be compiled, or is none of the beginning that is continued.
    """
    is_required = choice.kind == "required"
    strict = any(tool["function"].get("strict") is True for tool in tools)
    calls = bool(tools) and choice.kind != "none" and (is_required or strict or not choice.many or bool(value.rule))
    if not calls and not value.rule:
        return options
    field = value.field or ("tool_choice" if is_required else "tools")
    if is_continued and (is_required or value.rule):
        raise bad_request(field, f"{field} cannot be kept in a message that is continued")
    try:
        rules = tool_rules(card.chat, tools, choice.name, choice.many) if calls else None
        constraint = _constraint(options, rules, is_required, value.rule)
        card.grammars.matcher(constraint.grammar)
    except UserError as error:
        raise bad_request(field, f"{field}: {error}") from None
    return dataclasses.replace(options, sampling=dataclasses.replace(options.sampling, constraint=constraint))


def _constraint(options: GenerationRequest, rules: CallRules | None, is_required: bool, value: str) -> TokenConstraint:
    chat, text = options.chat, "" if rules is None else rules.text
    before = "" if chat is None else chat.reasoning_rule(options.thinking)
    if rules is not None and not (is_required or value):
        return TokenConstraint(*optional_calls(rules, before))
    answers = [_VALUE] * bool(value and not is_required) + ["calls"] * (rules is not None)
    return TokenConstraint(f"start: {before} ({' | '.join(answers)})\n{text}{value}")


def _rule(make: Any, value: Any, field: str) -> TextRule:
    try:
        return TextRule(make(_VALUE, value, field), field)
    except UserError as error:
        raise bad_request(field, str(error)) from None
