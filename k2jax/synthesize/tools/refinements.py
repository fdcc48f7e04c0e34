"""Refinements of tools by the program for evolution: more parameters and conditions, and what else a call changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import copy
import random
from typing import Any

from k2jax.tasks.worlds.parts import Json, arg, field, need, snake, text, whole

_LONGEST_NAME = 64
NOTES = ("note", "reason", "clerk", "receipt", "channel", "approval", "place of work", "remark")
"""What a refined tool writes down beside what it does."""


def refined(world: Mapping[str, Any], tool: Mapping[str, Any], rng: random.Random) -> tuple[Json, Json] | None:
    """A refinement of a tool that stands beside it, and the collections that it needs; None where the draw has none.

    Args:
        world: of the tool, as JSON.
        tool: one of its tools.
        rng: of the draw.
    """
    subject = subject_of(tool)
    if subject is None:
        return None
    ways: list[Callable[..., tuple[Json, Json] | None]] = [_filtered] if not tool["requires"] else [_bounded, _expected]
    ways += [_noted, _noted] if tool["effects"] and subject[1] is not None else []
    return rng.choice(ways)(world, copy.deepcopy(dict(tool)), subject, rng)


def subject_of(tool: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """The collection that a tool is about, and the argument with the id of its record, if one has it."""
    for required in tool["requires"]:
        if isinstance(of := required["condition"].get("exists"), Sequence) and isinstance(of[1], Mapping):
            return of[0], of[1].get("arg")
    [(kind, of)] = tool["returns"].items()
    return (of[0], None) if kind == "find" else None


def _named(tool: Json, words: str, clause: str) -> bool:
    """Gives a refinement its name and description; whether the name is short enough."""
    tool["name"] = f"{tool['name']}_{snake(words)}"
    tool["description"] = f"{tool['description'].rstrip('.')}, {clause}."
    return len(tool["name"]) <= _LONGEST_NAME


def _said(name: str) -> str:
    return name.replace("_", " ")


def _fields(world: Mapping[str, Any], collection: str, *types: str) -> list[tuple[str, Mapping[str, Any]]]:
    fields = world["collections"][collection]["fields"].items()
    return [(name, kind) for name, kind in fields if kind["type"] in types and "refers" not in kind]


def _bounded(world: Mapping[str, Any], tool: Json, subject: Any, rng: random.Random) -> tuple[Json, Json] | None:
    collection, key = subject
    numbers = _fields(world, collection, "integer", "number")
    if key is None or not numbers:
        return None
    name, _ = rng.choice(numbers)
    side = rng.choice(("least", "most"))
    parameter, value = f"{side}_{name}", field(collection, arg(key), name)
    if parameter in tool["parameters"]:
        return None
    sides = [value, arg(parameter)] if side == "least" else [arg(parameter), value]
    tool["parameters"][parameter] = whole(f"Its {_said(name)} has to be at {side} this.")
    tool["requires"].append(need({"at_least": sides}, f"its {name} is not at {side} {{{parameter}}}"))
    words, clause = f"with {side} {name}", f"if its {_said(name)} is at {side} a given number"
    return (tool, {}) if _named(tool, words, clause) else None


def _expected(world: Mapping[str, Any], tool: Json, subject: Any, rng: random.Random) -> tuple[Json, Json] | None:
    collection, key = subject
    texts = _fields(world, collection, "string")
    if key is None or not texts:
        return None
    name, kind = rng.choice(texts)
    parameter, value = f"expected_{name}", field(collection, arg(key), name)
    if parameter in tool["parameters"]:
        return None
    same = {"equal": [value, arg(parameter)]}
    choices = {"enum": kind["enum"]} if "enum" in kind else {}
    if rng.random() < 0.5:
        same = {"any": [{"not": {"given": parameter}}, same]}
        choices["optional"] = True
    tool["parameters"][parameter] = text(f"Its {_said(name)} has to be this.", **choices)
    tool["requires"].append(need(same, f"its {name} is not {{{parameter}}}"))
    words, clause = (
        f"expecting {name}",
        f"if its {_said(name)} is the {'given' if 'optional' in choices else 'expected'} one",
    )
    return (tool, {}) if _named(tool, words, clause) else None


def _noted(world: Mapping[str, Any], tool: Json, subject: Any, rng: random.Random) -> tuple[Json, Json] | None:
    collection, key = subject
    note = rng.choice(NOTES)
    name = f"last_{snake(note)}"
    if snake(note) in tool["parameters"] or any({"delete", "when"} & set(effect) for effect in tool["effects"]):
        return None
    kind = text(f"The {note} of the last change.", optional=True)
    tool["parameters"][snake(note)] = text(f"The {note} that is written down.")
    tool["effects"].append({"set": [collection, arg(key), name, arg(snake(note))]})
    grown = copy.deepcopy(dict(world["collections"][collection]))
    grown["fields"].setdefault(name, kind)
    return (tool, {collection: grown}) if _named(tool, f"with {note}", f"and writes the {note} down") else None


def _filtered(world: Mapping[str, Any], tool: Json, subject: Any, rng: random.Random) -> tuple[Json, Json] | None:
    [(kind, of)] = tool["returns"].items()
    known = [(name, each) for name, each in _fields(world, of[0], "string", "integer") if name not in of[1]]
    if not known or kind != "find":
        return None
    name, each = rng.choice(known)
    is_needed = rng.random() < 0.5
    plain = {key: value for key, value in each.items() if key != "optional"}
    tool["parameters"][name] = plain if is_needed else {**plain, "optional": True}
    of[1][name] = arg(name)
    how = "of a given" if is_needed else "or of a chosen"
    return (tool, {}) if _named(tool, f"{'of' if is_needed else 'by'} {name}", f"{how} {_said(name)}") else None
