"""What a world is made of, as data: collections of records, invariants, and tools with their semantics.

A specification is JSON that a model or a generator wrote, so that everything in it is checked before it is used: names
that do not exist, expressions of a wrong form, and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import re
from typing import Any

from k2jax.agents.toolsets.types import declared, parameters_of
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.worlds.semantics import MOST_DEPTH, is_operation

MOST_TOOLS, MOST_COLLECTIONS, MOST_FIELDS, MOST_BYTES = 64, 16, 32, 1 << 18
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")
_TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
_FIELD_KEYS = {"type", "enum", "minimum", "maximum", "refers", "optional", "description"}
_EXPRESSIONS = {"arg": 0, "this": 0, "new": 0, "field": 3, "plus": 2, "minus": 2}
_CONDITIONS = {"exists": 2, "equal": 2, "at_least": 2, "one_of": 2, "given": 0, "not": 0, "all": None, "any": None}
_EFFECTS = {"set": 4, "create": 3, "delete": 2, "when": 2}
_ANSWERS = {"record": 2, "find": 2, "value": 0}


class _Mistake(Exception):
    """What is wrong with a specification, as a clause."""


@dataclasses.dataclass(frozen=True)
class WorldSpec:
    """A world; ``read_world`` makes it from JSON and checks it.

    Attributes:
        name: of the world.
        description: what it is about, for whoever works in it.
        policy: rules that its agent has to obey.
        collections: by name ``{"prefix": of ids, "fields": {name: {"type", "enum", "minimum", "maximum", "refers",
            "optional", "description"}}}``; ``refers`` names the collection whose ids the field holds.
        invariants: ``{"name", "total": [[collection, field], ...]}``, a sum that no call changes, or ``{"name",
            "each": collection, "holds": condition}``.
        tools: ``{"name", "description", "parameters": {name: field}, "requires": [{"condition", "error"}],
            "effects": [effect], "returns": answer}``, see ``semantics``.
    """

    name: str
    description: str
    policy: str
    collections: Mapping[str, Mapping[str, Any]]
    invariants: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]

    @functools.cached_property
    def tools_by_name(self) -> Mapping[str, Mapping[str, Any]]:
        """The tools."""
        return {tool["name"]: tool for tool in self.tools}

    def to_json(self) -> dict[str, Any]:
        """The JSON value; ``read_world`` is the inverse."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def read_world(values: Any) -> WorldSpec:
    """A checked world.

    Raises:
        UserError: what is wrong with it, in one line.
    """
    names = [field.name for field in dataclasses.fields(WorldSpec)]
    try:
        _demand(isinstance(values, Mapping) and set(values) == set(names), f"it must have the keys {', '.join(names)}")
        _demand(len(json.dumps(values)) <= MOST_BYTES, f"it has more than {MOST_BYTES:,} bytes")
        spec = WorldSpec(**values)
        _check(spec)
    except (_Mistake, ValueError, RecursionError) as error:
        name = abbreviate(values.get("name")) if isinstance(values, Mapping) else "without a name"
        raise UserError(f"the world {name} cannot be used: {error}") from None
    return spec


def declarations(spec: WorldSpec, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The tools in OpenAI's format: those with the names, or all."""
    return [
        declared(tool["name"], tool["description"], _parameters(tool["parameters"]))
        for tool in spec.tools
        if not names or tool["name"] in names
    ]


def is_of_type(value: Any, field: Mapping[str, Any]) -> bool:
    """Whether a value has a field's type, range and choices."""
    if value is None:
        return bool(field.get("optional"))
    if isinstance(value, bool) != (field["type"] == "boolean") or not isinstance(value, _TYPES[field["type"]]):
        return False
    if value in field.get("enum", [value]):
        low, high = field.get("minimum"), field.get("maximum")
        return (low is None or value >= low) and (high is None or value <= high)
    return False


def changes_state(tool: Mapping[str, Any]) -> bool:
    """Whether a tool has effects."""
    return bool(tool["effects"])


def _parameters(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    properties = {
        name: {key: value for key, value in field.items() if key not in ("optional", "refers")}
        for name, field in fields.items()
    }
    return parameters_of(properties, [name for name, field in fields.items() if not field.get("optional")])


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise _Mistake(message)


def _check(spec: WorldSpec) -> None:
    texts = (spec.name, spec.description, spec.policy)
    _demand(all(isinstance(text, str) for text in texts), "its name, description and policy must be texts")
    _demand(isinstance(spec.collections, Mapping) and 0 < len(spec.collections) <= MOST_COLLECTIONS, "no collections")
    for name, collection in spec.collections.items():
        _demand(isinstance(collection, Mapping) and set(collection) == {"prefix", "fields"}, f"of {name} the keys")
        _demand(bool(_NAME.fullmatch(name)) and isinstance(collection["prefix"], str), f"the name {abbreviate(name)}")
        _check_fields(spec, name, collection["fields"])
    _demand(isinstance(spec.tools, Sequence) and 0 < len(spec.tools) <= MOST_TOOLS, f"it has 1 to {MOST_TOOLS} tools")
    for tool in spec.tools:
        keys = {"name", "description", "parameters", "requires", "effects", "returns"}
        _demand(isinstance(tool, Mapping) and set(tool) == keys, f"a tool must have the keys {', '.join(sorted(keys))}")
        _check_tool(spec, tool)
    _demand(len(spec.tools_by_name) == len(spec.tools), "two tools have one name")
    for invariant in spec.invariants:
        _check_invariant(spec, invariant)


def _check_fields(spec: WorldSpec, of: str, fields: Any) -> None:
    _demand(isinstance(fields, Mapping) and len(fields) <= MOST_FIELDS, f"{of} has no fields, or too many")
    for name, field in fields.items():
        where = f"the field {abbreviate(name)} of {of}"
        _demand(isinstance(name, str) and bool(_NAME.fullmatch(name)), f"{where} has no name")
        _demand(isinstance(field, Mapping) and set(field) <= _FIELD_KEYS and field.get("type") in _TYPES, f"{where}")
        _demand("refers" not in field or field["refers"] in spec.collections, f"{where} refers to no collection")
        numeric = all(type(field.get(key, 0)) in (int, float) for key in ("minimum", "maximum"))
        _demand(numeric and isinstance(field.get("enum", []), list), f"{where} has no range or choices")


def _check_tool(spec: WorldSpec, tool: Mapping[str, Any]) -> None:
    name = tool["name"]
    _demand(isinstance(name, str) and bool(_NAME.fullmatch(name)), f"the tool {abbreviate(name)} has no name")
    _demand(isinstance(tool["description"], str), f"the tool {name} has no description")
    _check_fields(spec, name, tool["parameters"])
    check = _Forms(spec, tool["parameters"], f"the tool {name}")
    for required in tool["requires"]:
        keys = isinstance(required, Mapping) and set(required) == {"condition", "error"}
        _demand(keys and isinstance(required["error"], str), f"a requirement of the tool {name}")
        check.condition(required["condition"])
    for effect in tool["effects"]:
        check.effect(effect)
    check.answer(tool["returns"])


def _check_invariant(spec: WorldSpec, invariant: Any) -> None:
    _demand(isinstance(invariant, Mapping) and isinstance(invariant.get("name"), str), "an invariant has no name")
    check = _Forms(spec, {}, f"the invariant {invariant['name']}")
    if set(invariant) == {"name", "total"}:
        for part in invariant["total"]:
            _demand(isinstance(part, list) and len(part) == 2, f"{check.where} has a part without a field")
            check.field(*part)
    else:
        _demand(set(invariant) == {"name", "each", "holds"}, f"{check.where} has neither a total nor a condition")
        check.collection(invariant["each"])
        check.this = spec.collections[invariant["each"]]["fields"]
        check.condition(invariant["holds"])


class _Forms:
    """Checks the forms of ``semantics`` for one tool or invariant."""

    def __init__(self, spec: WorldSpec, parameters: Mapping[str, Any], where: str):
        self._spec, self._parameters, self.where = spec, parameters, where
        self.this: Mapping[str, Any] = {}

    def collection(self, name: Any) -> None:
        known = isinstance(name, str) and name in self._spec.collections
        _demand(known, f"{self.where} names the collection {abbreviate(name)}, which does not exist")

    def field(self, collection: Any, name: Any) -> None:
        self.collection(collection)
        known = isinstance(name, str) and name in self._spec.collections[collection]["fields"]
        _demand(known, f"{self.where} names the field {abbreviate(name)} of {collection}, which does not exist")

    def expression(self, value: Any, depth: int = 0) -> None:
        if not isinstance(value, Mapping):
            _demand(value is None or isinstance(value, str | int | float), f"{self.where} has a constant {value!r}")
            return
        kind, of = self._operation(value, _EXPRESSIONS, depth)
        if kind == "new":
            self.collection(of)
        elif kind in ("arg", "this"):
            known = self._parameters if kind == "arg" else self.this
            _demand(
                isinstance(of, str) and of in known, f"{self.where} names {kind} {abbreviate(of)}, which is unknown"
            )
        elif kind == "field":
            self.field(of[0], of[2])
            self.expression(of[1], depth + 1)
        else:
            for part in of:
                self.expression(part, depth + 1)

    def condition(self, value: Any, depth: int = 0) -> None:
        kind, of = self._operation(value, _CONDITIONS, depth)
        if kind == "given":
            self.expression({"arg": of}, depth)
        elif kind == "not":
            self.condition(of, depth + 1)
        elif kind in ("all", "any"):
            for part in of:
                self.condition(part, depth + 1)
        elif kind == "exists":
            self.collection(of[0])
            self.expression(of[1], depth + 1)
        else:
            _demand(kind != "one_of" or isinstance(of[1], list), f"{self.where} has no list of choices")
            for part in of[:1] if kind == "one_of" else of:
                self.expression(part, depth + 1)

    def effect(self, value: Any, depth: int = 0) -> None:
        kind, of = self._operation(value, _EFFECTS, depth)
        if kind == "when":
            self.condition(of[0], depth + 1)
            for part in of[1]:
                self.effect(part, depth + 1)
            return
        self.collection(of[0])
        self.expression(of[1], depth + 1)
        if kind == "set":
            self.field(of[0], of[2])
            self.expression(of[3], depth + 1)
        elif kind == "create":
            self._fields(of[0], of[2], depth)

    def answer(self, value: Any) -> None:
        kind, of = self._operation(value, _ANSWERS, 0)
        if kind == "value":
            self.expression(of)
            return
        self.collection(of[0])
        if kind == "record":
            self.expression(of[1])
        else:
            self._fields(of[0], of[1], 0)

    def _fields(self, collection: str, values: Any, depth: int) -> None:
        _demand(isinstance(values, Mapping), f"{self.where} has no fields for {collection}")
        for name, part in values.items():
            self.field(collection, name)
            self.expression(part, depth + 1)

    def _operation(self, value: Any, known: Mapping[str, int | None], depth: int) -> tuple[str, Any]:
        _demand(depth <= MOST_DEPTH, f"{self.where} is nested too deep")
        _demand(is_operation(value) and next(iter(value)) in known, f"{self.where} has {abbreviate(value)}")
        [(kind, of)] = value.items()
        count = known[kind]
        fits = count == 0 or (isinstance(of, list) and (count is None or len(of) == count))
        _demand(fits, f"{self.where} has {abbreviate(value)}, of which the parts are wrong")
        return kind, of
