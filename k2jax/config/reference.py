"""The reference of all configuration keys, generated from the dataclasses of ``schema``."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from k2jax.config import schema


class Key(NamedTuple):
    """One configuration key: dotted path, type name, default and meaning (with its unit)."""

    path: str
    type: str
    default: str
    meaning: str


def keys(cls: type = schema.Config, prefix: str = "") -> list[Key]:
    """Every key below a dataclass, in declaration order; mappings appear with ``NAME`` in their path."""
    hints, meanings, result = get_type_hints(cls), _meanings(cls), []
    for field in dataclasses.fields(cls):
        path, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            result += keys(hint, f"{path}.")
        elif len(get_args(hint)) == 2 and dataclasses.is_dataclass(get_args(hint)[1]):
            result += keys(get_args(hint)[1], f"{path}.NAME.")
        else:
            result.append(Key(path, _type_name(hint), repr(field.default), meanings[field.name]))
    return result


def reference_text() -> str:
    """The keys as plain lines for ``--help``."""
    return "\n".join(f"  {key.path} ({key.type}, default {key.default})\n      {key.meaning}" for key in keys())


def reference_markdown() -> str:
    """The keys as a Markdown table."""
    rows = [f"| `{key.path}` | {key.type} | `{key.default}` | {key.meaning.replace('|', '/')} |" for key in keys()]
    return "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _type_name(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join("None" if arg is type(None) else arg.__name__ for arg in get_args(hint))
    return f"tuple of {get_args(hint)[0].__name__}" if get_origin(hint) is tuple else hint.__name__


def _meanings(cls: type) -> dict[str, str]:
    """Field name to the text behind ``#:``, read from the class's source."""
    found = dict(re.findall(r"^    (\w+): .*?  #: (.*)$", inspect.getsource(cls), re.MULTILINE))
    missing = [field.name for field in dataclasses.fields(cls) if field.name not in found]
    if missing:
        raise ValueError(f"{cls.__name__} fields without a '#:' meaning: {missing}")
    return found
