"""The one table of fields of messages: each is used, has no meaning here, or is refused by name.

Data for fine-tuning and histories of clients come in the dialects of many tools. ``read_message`` turns a message of
any of them into the form that chat formats render: ``role`` (system, user, assistant or tool), ``content`` (text, or a
list of parts where some are images or labels) and, where they say something, ``reasoning_content``, ``tool_calls``,
``tool_call_id``, ``name``, ``is_error`` (True), ``weight`` (0) and ``partial`` (True).

| field | role | becomes |
| --- | --- | --- |
| `reasoning_content`, `reasoning`, `thinking`, `reasoning_details`, `thinking_blocks`, parts | assistant | reasoning |
| `refusal` | assistant | the content: it is what the assistant said |
| `tool_calls`, the older `function_call` | assistant | `tool_calls` |
| `partial`, `prefix` | assistant | `partial`: the model is to continue the message |
| `weight`, `train`, `training`, `trainable`, `loss`; `mask`, `masked` | any | `weight` 0 where it is not trained |
| `tool_call_id`, `name`; `is_error` | tool | themselves; an error begins with `Error: ` |

A field that is ``null`` is absent. The role ``developer`` is ``system``, and ``function`` is ``tool``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.text.messages import (
    REASONING_PARTS,
    TEXT_PARTS,
    Message,
    part_text,
    stated_reasoning,
    thought_of,
    tool_calls,
)

Passed = list[str] | None
"""Receives the names of fields that nobody reads; None refuses them."""

_ROLES = {"developer": "system", "function": "tool"} | {name: name for name in ("system", "user", "assistant", "tool")}
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
_CONTINUED = ("partial", "prefix")
_MARKS = dict.fromkeys(("weight", "train", "training", "trainable", "loss"), True) | {"masked": False, "mask": False}
"""Marks of training, each with the value that says that a message is trained."""
_WITHOUT_MEANING = {
    *("annotations", "id", "index", "status", "created_at", "timestamp", "cache_control", "metadata"),
    "provider_specific_fields",
}
_FIELDS: Mapping[str, frozenset[str]] = {
    "system": frozenset(),
    "user": frozenset(),
    "assistant": frozenset(("tool_calls", "function_call", "refusal", *_REASONING, *_CONTINUED)),
    "tool": frozenset(("tool_call_id", "is_error")),
}
_PART_FIELDS = frozenset(("type", "cache_control", "annotations", "citations", "logprobs", "id", "index", "signature"))
_DIRECTIONS = "directions"
"""Mark of a text whose words for sides follow a picture; such a text stays a part, see ``k2jax.data.images``."""
MEDIA_PARTS = frozenset(("image", "image_url", "video", "boxes", "points", "polygons"))
"""Types of parts that are read elsewhere, with all that they hold: images, clips, and labels of images."""
_ERROR = "Error: "


def read_message(message: Any, where: str, passed: Passed = None) -> dict[str, Any]:
    """A message in the form that chat formats render.

    Args:
        message: the JSON value.
        where: its place, which begins every error: ``messages[3]``.
        passed: receives the fields that are passed over; None refuses them.

    Raises:
        UserError: it is malformed, states something twice and differently, or has a field that nobody reads.
    """
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise UserError(
            f"{where} needs a role: system, developer, user, assistant, tool or function, not {abbreviate(message)}"
        )
    role = _ROLES[role]
    fields = {name: value for name, value in message.items() if value is not None}
    check_names(fields, {"role", "content", "name", *_MARKS, *_FIELDS[role]} | _WITHOUT_MEANING, where, passed)
    content, thoughts = _read_content(fields.get("content"), role, where, passed)
    read = {"role": role, "content": content}
    for name in ("name", "tool_call_id"):
        if (
            name in fields
            and (value := _typed(fields, name, str, "text", where))
            and (name == "name" or role == "tool")
        ):
            read[name] = value
    if not is_trained(fields, role, where):
        read["weight"] = 0
    if role == "assistant":
        _read_answer(read, fields, thoughts, where, passed)
    if role == "tool" and _flag(fields, "is_error", where):
        read |= {"is_error": True, "content": _as_error(content)}
    return read


def is_trained(fields: Mapping[str, Any], role: str, where: str) -> bool:
    """Whether a message's marks let it be trained on; without one it is, if it is the assistant's.

    Raises:
        UserError: a mark is neither yes nor no, two disagree, or one asks to train on what another role wrote.
    """
    marks = {}
    for name, positive in _MARKS.items():
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise UserError(f"{where} has {name} {abbreviate(value)}; a message is trained or not: give 1 or 0")
        marks[name] = bool(value) == positive
    if len(set(marks.values())) > 1:
        raise UserError(f"{where} has marks of training that disagree: {', '.join(marks)}; keep one of them")
    asked = [name for name, trained in marks.items() if trained and name != "weight"]
    if role != "assistant" and asked:
        raise UserError(f"{where} of the {role} is marked to be trained by {asked[0]}; only the assistant's are")
    return all(marks.values())


def _read_answer(read: dict[str, Any], fields: Message, thoughts: list[str], where: str, passed: Passed) -> None:
    """Adds what only an assistant's message has."""
    if "refusal" in fields and (refusal := _typed(fields, "refusal", str, "text", where)):
        if read["content"]:
            raise UserError(f"{where} has content and a refusal; keep the one that the assistant said")
        read["content"] = refusal
    reasoning = _reasoning(fields, thoughts, where, passed)
    if reasoning is not None and not isinstance(read["content"], str) and stated_reasoning(read) is not None:
        raise UserError(f"{where} states its reasoning in parts of its content and beside it; keep one of the two")
    if reasoning is not None:
        read["reasoning_content"] = reasoning
    calls = [_read_call(call, where, passed) for call in tool_calls(fields)]
    if "function_call" in fields:
        if calls:
            raise UserError(f"{where} has tool_calls and a function_call; keep tool_calls")
        calls = [_read_call({"function": fields["function_call"]}, where, passed)]
    if calls:
        read["tool_calls"] = calls
    if any([_flag(fields, name, where) for name in _CONTINUED]):
        read["partial"] = True


def _reasoning(fields: Message, thoughts: list[str], where: str, passed: Passed) -> str | None:
    """The reasoning that a message states, under whatever names; None where it states none."""
    stated: dict[str, str] = {}
    for name in _REASONING:
        value = fields.get(name)
        if isinstance(value, list) and name in ("reasoning_details", "thinking_blocks"):
            texts = [thought_of(part) for part in value]
            if None in texts:
                _pass_over(f"{where}.{name} with reasoning that is no text", passed)
            if readable := [text for text in texts if text is not None]:
                stated[name] = "".join(readable)
        elif value is not None:
            stated[name] = _typed(fields, name, str, "text", where)
    if thoughts:
        stated["content"] = "".join(thoughts)
    different = {text: name for name, text in reversed(stated.items()) if text}
    if len(different) > 1:
        _pass_over(f"{where} states different reasoning in {' and '.join(reversed(different.values()))}", passed)
    return next((text for text in stated.values() if text), "" if stated else None)


def _read_content(content: Any, role: str, where: str, passed: Passed) -> tuple[Any, list[str]]:
    """Content as text, or as parts where some are images or labels; and the reasoning among the parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list | tuple):
        raise UserError(f"{where}: its content must be text or a list of parts, not {abbreviate(content)}")
    parts: list[Any] = []
    thoughts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in REASONING_PARTS and role == "assistant":
            if (thought := thought_of(part)) is None:
                _pass_over(f"{where} with a part of type {kind} that is no text", passed)
            else:
                thoughts.append(thought)
                parts.append({"type": "thinking", "thinking": thought} | _directions(part))
        elif isinstance(kind, str) and kind in MEDIA_PARTS:
            parts.append(part)
        elif (text := part_text(part)) is None:
            shown = "without a type" if kind is None else f"of type {abbreviate(kind, 60)}"
            raise UserError(f"{where} has a part {shown}, which is not read: {abbreviate(part)}")
        else:
            if isinstance(part, Mapping):
                known = {*_PART_FIELDS, _DIRECTIONS, TEXT_PARTS.get(kind, "text")}
                check_names(part, known, f"{where}.content", passed)
            parts.append({"type": "text", "text": text} | _directions(part))
    if any(part["type"] == "thinking" and _DIRECTIONS in part for part in parts):
        return parts, []
    parts = [part for part in parts if part["type"] != "thinking"]
    if any(part["type"] != "text" or _DIRECTIONS in part for part in parts):
        return parts, thoughts
    return "".join(part["text"] for part in parts), thoughts


def _directions(part: Any) -> dict[str, Any]:
    marked = isinstance(part, Mapping) and part.get(_DIRECTIONS) is not None
    return {_DIRECTIONS: part[_DIRECTIONS]} if marked else {}


def _read_call(call: Any, where: str, passed: Passed) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise UserError(f"{where}: a tool call needs a function with a name, not {abbreviate(call)}")
    if (kind := call.get("type") or "function") != "function":
        raise UserError(f"{where} has a call of type {abbreviate(kind, 60)}; only calls of functions are read")
    place = f"{where}.tool_calls"
    check_names(call, {"id", "type", "function", "index"}, place, passed)
    check_names(function, {"name", "arguments"}, place, passed)
    stated = {"name": function["name"]} | ({"arguments": function["arguments"]} if "arguments" in function else {})
    call_id = {"id": _typed(call, "id", str, "text", place)} if call.get("id") is not None else {}
    return call_id | {"type": "function", "function": stated}


def _as_error(content: Any) -> Any:
    """The content of a result that is an error, which says so to the model: formats have no other place for it."""
    first = content if isinstance(content, str) else next((p["text"] for p in content if p["type"] == "text"), "")
    if first.lstrip().lower().startswith("error"):
        return content
    return _ERROR + content if isinstance(content, str) else [{"type": "text", "text": _ERROR}, *content]


def check_names(fields: Message, known: Collection[str], where: str, passed: Passed) -> None:
    """Passes over the fields that are not known, or refuses the first of them; ``null`` is as absent.

    Raises:
        UserError: one is not known, and ``passed`` is None.
    """
    for name, value in fields.items():
        if name not in known and value is not None:
            if passed is None:
                raise UserError(f"{where} has the field {abbreviate(name, 60)}, which is not read; remove or rename it")
            plain = name.isascii() and name.isprintable() and len(name) <= 80
            passed.append(f"{where}.{name if plain else abbreviate(name)}")


def _pass_over(what: str, passed: Passed) -> None:
    if passed is None:
        raise UserError(what)
    passed.append(what)


def _typed(fields: Message, name: str, kind: type, expected: str, where: str) -> Any:
    if not isinstance(fields[name], kind):
        raise UserError(f"{where}: {name} must be {expected}, not {abbreviate(fields[name])}")
    return fields[name]


def _flag(fields: Message, name: str, where: str) -> bool:
    return name in fields and _typed(fields, name, bool, "true or false", where)
