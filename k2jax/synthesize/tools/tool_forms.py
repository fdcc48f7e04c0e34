"""What a tool does, as a form that is the same under other words: names are numbers, and order counts where it matters.

Two tools have one form where their semantics are the same under some renaming, after rewritings that change nothing:
the order of requirements and of effects that do not see one another, double negations, a choice among one, whole
numbers and numbers, parameters that the semantics do not use, and the requirement that a record exists which is read
anyhow. A tool without semantics (of an MCP server) has the form of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import hashlib
import json
from typing import Any, NamedTuple

_ROUNDS = 2
"""In which names are told apart by where they stand; enough for the depth of the language."""


class _Name(NamedTuple):
    """A name of the semantics: its kind and what it is called."""

    kind: str
    called: str


class _Unordered(tuple):
    """Parts whose order means nothing."""

    __slots__ = ()


def form_of(tool: Mapping[str, Any]) -> str:
    """A text that is equal for tools that do the same.

    Args:
        tool: of ``WorldSpec``, or ``{"name", "description", "schema"}`` of a server.
    """
    if "schema" in tool:
        return json.dumps(["schema", schema_kinds(tool)])
    statements = _statements(tool)
    colours = _told_apart(tool, statements, 0)
    if _has_ties(statements, colours):
        colours = _told_apart(tool, statements, _ROUNDS)
    ordered = _ordered(statements, colours)
    numbers: dict[_Name, int] = {}
    for name in _names(ordered):
        numbers.setdefault(name, len(numbers))
    kinds = [_kind_of(tool, name) for name in numbers if name.kind == "argument"]
    return json.dumps([kinds, _text(ordered, lambda name: f"#{numbers[name]}", lambda texts: texts)])


def field_roles(tool: Mapping[str, Any]) -> dict[str, str]:
    """What each field of a tool's semantics is there for, as a text that is equal in tools of one form.

    Args:
        tool: of ``WorldSpec``.
    """
    statements = _statements(tool)
    colours = _told_apart(tool, statements, _ROUNDS)
    return {name.called.partition(".")[2]: colour for name, colour in colours.items() if name.kind == "field"}


def _told_apart(tool: Mapping[str, Any], statements: tuple[Any, ...], rounds: int) -> dict[_Name, str]:
    """The names of semantics with texts that say where each one stands among the others."""
    colours = {name: f"{name.kind} {_kind_of(tool, name)}" for name in _names(statements)}
    for _ in range(rounds):
        colours = {name: _colour(name, statements, colours) for name in colours}
    return colours


def schema_kinds(tool: Mapping[str, Any]) -> list[list[Any]]:
    """Types of a tool's parameters and whether they may be left out, sorted; whole numbers are numbers."""
    if "schema" in tool:
        required = tool["schema"].get("required", ())
        fields = tool["schema"].get("properties", {}).items()
        return sorted([_type(field.get("type")), name not in required] for name, field in fields)
    return sorted([_type(field["type"]), bool(field.get("optional"))] for field in tool["parameters"].values())


def _type(value: Any) -> str:
    return "number" if value == "integer" else str(value)


def _kind_of(tool: Mapping[str, Any], name: _Name) -> str:
    if name.kind != "argument":
        return ""
    field = tool["parameters"][name.called]
    return f"{_type(field['type'])}{'?' if field.get('optional') else ''}"


def _statements(tool: Mapping[str, Any]) -> tuple[Any, ...]:
    requires = [part for required in tool["requires"] for part in _conjuncts(_condition(required["condition"]))]
    effects = [_effect(effect) for effect in tool["effects"]]
    answer = _answer(tool["returns"])
    certain = [part for part in (*requires, *effects, answer) if part[0] not in ("any", "when")]
    read = {key for part in certain for key in _read(part)}
    needed = dict.fromkeys(part for part in requires if part[0] != "exists" or part[1:] not in read)
    done = _Unordered(effects) if _independent(effects) else tuple(effects)
    return (_Unordered(needed), done, answer)


def _conjuncts(condition: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
    return condition[1] if condition[0] == "all" else (condition,)


def _read(part: Any) -> Iterator[tuple[Any, ...]]:
    """``(collection, id)`` of the records without which a statement is refused."""
    if not isinstance(part, tuple) or isinstance(part, _Name):
        return
    if part and part[0] in ("field", "set", "delete", "record"):
        yield part[1:3]
    for each in part:
        yield from _read(each)


def _independent(effects: Sequence[tuple[Any, ...]]) -> bool:
    """Whether effects only set fields that no other one of them reads or sets."""
    if not all(effect[0] == "set" for effect in effects):
        return False
    written = [effect[3] for effect in effects]
    read = [set(_names((effect[2], effect[4]))) for effect in effects]
    alone = [{*written[:place], *written[place + 1 :]} for place in range(len(effects))]
    return len(set(written)) == len(written) and not any(
        seen & others for seen, others in zip(read, alone, strict=True)
    )


def _expression(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return ("constant", json.dumps(value))
    [(kind, of)] = value.items()
    if kind == "arg":
        return ("arg", _Name("argument", of))
    if kind == "this":
        return ("this", _Name("field", of))
    if kind == "new":
        return ("new", _Name("collection", of))
    if kind == "field":
        return ("field", _Name("collection", of[0]), _expression(of[1]), _Name("field", f"{of[0]}.{of[2]}"))
    parts = [_expression(part) for part in of]
    return (kind, _Unordered(parts) if kind == "plus" else tuple(parts))


def _condition(value: Mapping[str, Any], negated: bool = False) -> tuple[Any, ...]:
    [(kind, of)] = value.items()
    if kind == "not":
        return _condition(of, not negated)
    if kind in ("all", "any"):
        joined = {"all": "any", "any": "all"}[kind] if negated else kind
        parts: list[Any] = []
        for part in of:
            made = _condition(part, negated)
            parts += made[1] if made[0] == joined else [made]
        return (joined, _Unordered(dict.fromkeys(parts))) if len(parts) != 1 else parts[0]
    if kind == "given":
        made: tuple[Any, ...] = ("given", _Name("argument", of))
    elif kind == "exists":
        made = ("exists", _Name("collection", of[0]), _expression(of[1]))
    elif kind == "one_of":
        choices = _Unordered(("constant", json.dumps(choice)) for choice in of[1])
        first = _expression(of[0])
        made = ("equal", _Unordered((first, choices[0]))) if len(choices) == 1 else ("one_of", first, choices)
    else:
        parts = [_expression(part) for part in of]
        made = (kind, _Unordered(parts) if kind == "equal" else tuple(parts))
    return ("not", made) if negated else made


def _effect(value: Mapping[str, Any]) -> tuple[Any, ...]:
    [(kind, of)] = value.items()
    if kind == "when":
        return ("when", _condition(of[0]), tuple(_effect(part) for part in of[1]))
    collection, key = _Name("collection", of[0]), _expression(of[1])
    if kind == "set":
        return ("set", collection, key, _Name("field", f"{of[0]}.{of[2]}"), _expression(of[3]))
    return (kind, collection, key, *([_fields(of[0], of[2])] if kind == "create" else ()))


def _answer(value: Mapping[str, Any]) -> tuple[Any, ...]:
    [(kind, of)] = value.items()
    if kind == "value":  # in which words it is said makes no difference
        return ("value", _expression(of)) if isinstance(of, Mapping) else ("said",)
    collection = _Name("collection", of[0])
    return (kind, collection, _expression(of[1]) if kind == "record" else _fields(of[0], of[1]))


def _fields(collection: str, values: Mapping[str, Any]) -> _Unordered:
    return _Unordered((_Name("field", f"{collection}.{name}"), _expression(part)) for name, part in values.items())


def _names(part: Any) -> Iterator[_Name]:
    if isinstance(part, _Name):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _names(each)


def _text(part: Any, called: Callable[[_Name], str], arrange: Callable[[list[str]], list[str]] = sorted) -> str:
    if isinstance(part, _Name):
        return called(part)
    if isinstance(part, _Unordered):
        return "{" + ",".join(arrange([_text(each, called, arrange) for each in part])) + "}"
    if isinstance(part, tuple):
        return "(" + ",".join([_text(each, called, arrange) for each in part]) + ")"
    return str(part)


def _ordered(part: Any, colours: Mapping[_Name, str]) -> Any:
    """The same with unordered parts in the order of their texts."""
    if isinstance(part, _Name) or not isinstance(part, tuple):
        return part
    parts = [_ordered(each, colours) for each in part]
    if isinstance(part, _Unordered):
        return _Unordered(sorted(parts, key=lambda each: _text(each, colours.__getitem__)))
    return tuple(parts)


def _has_ties(part: Any, colours: Mapping[_Name, str]) -> bool:
    """Whether different unordered parts have one text, so that their order is not known yet."""
    if isinstance(part, _Name) or not isinstance(part, tuple):
        return False
    if isinstance(part, _Unordered) and len({_text(each, colours.__getitem__) for each in part}) < len(set(part)):
        return True
    return any(_has_ties(each, colours) for each in part)


def _colour(name: _Name, statements: tuple[Any, ...], colours: Mapping[_Name, str]) -> str:
    """A text that says where a name stands among the colours of the others."""
    seen = _text(statements, lambda other: "*" if other == name else colours[other])
    return f"{name.kind} {hashlib.sha256(f'{colours[name]} {seen}'.encode()).hexdigest()[:12]}"
