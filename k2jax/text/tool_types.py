"""Tools as TypeScript declarations, which is how Kimi K2.5 reads them: JSON schemas become types with comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

from k2jax.errors import UserError, abbreviate

_INDENT = "  "
_DEFINITION = "#/$defs/"
_MOST_INDENTATION = 1 << 20
"""Characters of indentation in the declaration of a function."""
_MOST_CHARACTERS = 16 << 20
"""Characters of all declarations."""
_ROOT = "parameters"  # name of the interface that a schema refers to as "#"
_CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_IN_UNIONS = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}


def declare_functions(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declaration of tools in OpenAI's format; empty where none of them is a function.

    Raises:
        UserError: the parameters of a function are no JSON schema that has a type, or the declaration is too long.
    """
    functions, size = [], 0
    for tool in tools:
        if not isinstance(tool, Mapping):
            raise UserError(f"a tool must be an object, not {abbreviate(tool)}")
        if tool.get("type", "function") != "function":
            continue
        function = tool["function"] if isinstance(tool.get("function"), Mapping) else tool
        try:
            functions.append(_Function(function).declaration())
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise UserError(f"the tool {abbreviate(function.get('name'))} cannot be declared: {reason}") from None
        size += len(functions[-1])
        if size > _MOST_CHARACTERS:
            raise UserError(f"the declarations of the tools have more than {_MOST_CHARACTERS:,} characters")
    if not functions:
        return ""
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


class _Function:
    """One function: its definitions are met while its parameters are read."""

    def __init__(self, function: Mapping[str, Any]):
        self._function = function
        self._definitions: dict[str, Any] = {}
        self._refers_to_root = False
        self._indentation = 0  # characters so far

    def declaration(self) -> str:
        """Interfaces of its definitions, its description and its type, a line or more each."""
        schema = self._function.get("parameters") or {}
        inline = self._object(schema, "")
        parts = []
        is_recursive = self._refers_to_root
        if is_recursive:
            parameters = ",\n".join(self._parameters(schema, _INDENT, in_order=True))
            parts.append(f"interface {_ROOT} {{" + (f"\n{parameters}\n" if parameters else "") + "}")
        done = 0
        while new := list(self._definitions)[done:]:  # a definition may bring definitions of its own
            for name in new:
                definition = self._definitions[name]
                described = self._comment(definition["description"], "") + "\n" if definition.get("description") else ""
                parts.append(f"{described}interface {name} {self._type(definition, '')}")
            done += len(new)
        if self._function.get("description"):
            parts.append(self._comment(self._function["description"], ""))
        name = self._function.get("name", "function")
        return "\n".join([*parts, f"type {name} = (_: {_ROOT if is_recursive else inline}) => any;"])

    def _type(self, schema: Any, indent: str) -> str:
        """The type of a schema; lines after its first one are indented by ``indent``."""
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self._type(part, indent) for part in schema["anyOf"])
        if "enum" in schema:
            return " | ".join(f'"{value}"' if isinstance(value, str) else json.dumps(value) for value in schema["enum"])
        kind = schema.get("type")
        if kind is None:
            if schema:
                raise ValueError(f"{abbreviate(schema)} is no schema with a type")
            return "any"
        if isinstance(kind, list):
            return " | ".join(_IN_UNIONS[part] for part in kind)
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        return "number" if kind == "integer" else kind

    def _reference(self, reference: str) -> str:
        if reference == "#":
            self._refers_to_root = True
            return _ROOT
        name = reference.rpartition("/")[2]
        if not reference.startswith(_DEFINITION) or name not in self._definitions:
            raise ValueError(f"{abbreviate(reference)} refers to nothing in $defs")
        return name

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        self._definitions |= schema.get("$defs") or {}
        lines = self._parameters(schema, indent + _INDENT)
        others = schema.get("additionalProperties")
        if others is not None:
            kind = {True: "any", False: "never"}[others] if isinstance(others, bool) else None
            lines.append(f"{indent}{_INDENT}[k: string]: {kind or self._type(others, indent + _INDENT)}")
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        items = schema.get("items") or {}
        comments = self._comments(items, indent + _INDENT)
        if not comments:
            return f"Array<{self._type(items, indent)}>"
        return f"Array<\n{comments}{indent}{_INDENT}{self._type(items, indent + _INDENT)}\n{indent}>"

    def _parameters(self, schema: Mapping[str, Any], indent: str, in_order: bool = False) -> list[str]:
        """The properties with their comments: required ones first, each part by name, or as the schema has them."""
        properties = schema.get("properties") or {}
        required = frozenset(schema.get("required") or ()) if properties else frozenset()
        names = list(properties) if in_order else sorted(properties, key=lambda name: (name not in required, name))
        lines = []
        for name in names:
            part = properties[name]
            self._count(indent)
            comments, mark = self._comments(part, indent), "" if name in required else "?"
            if isinstance(part, Mapping) and part.get("default") is not None:
                comments += f"{indent}// Default: {json.dumps(part['default'], ensure_ascii=False)}\n"
            lines.append(f"{comments}{indent}{name}{mark}: {self._type(part, indent)}")
        return lines

    def _comments(self, schema: Any, indent: str) -> str:
        """The description and the constraints of a schema, each line ended; empty where it has none."""
        if isinstance(schema, bool):
            return ""
        lines = [self._comment(schema["description"], indent)] if schema.get("description") else []
        kind = None if schema.keys() & {"$ref", "anyOf", "enum"} else schema.get("type")
        allowed = _CONSTRAINTS.get(kind, ()) if isinstance(kind, str) else ()
        if found := [f"{key}: {schema[key]}" for key in allowed if key in schema]:
            lines.append(f"{indent}// {', '.join(found)}")
        return "".join(f"{line}\n" for line in lines)

    def _comment(self, text: str, indent: str) -> str:
        self._count(indent, text.count("\n") + 1)
        return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))

    def _count(self, indent: str, lines: int = 1) -> None:
        """Raises ValueError where deep schemas of many lines would be mostly indentation, however long."""
        self._indentation += len(indent) * lines
        if self._indentation > _MOST_INDENTATION:
            raise ValueError("its schema is nested too deeply for its many lines")
