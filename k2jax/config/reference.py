"""The reference of all configuration keys, generated from the dataclasses of ``schema``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import NamedTuple

from k2jax.config import schema
from k2jax.config.fields import field_type, group_of, hints_of, mapping_of


class Key(NamedTuple):
    """One configuration key.

    Attributes:
        path: dotted.
        type: its type with the choices or the range, in words.
        default: as Python writes it.
        meaning: with its unit.
    """

    path: str
    type: str
    default: str
    meaning: str


def keys(cls: type = schema.Config, prefix: str = "") -> list[Key]:
    """Lists every key below a dataclass, in declaration order; mappings appear with ``NAME`` in their path."""
    hints, meanings, result = hints_of(cls), _meanings(cls), []
    for field in dataclasses.fields(cls):
        path, hint = prefix + field.name, hints[field.name]
        if group := group_of(hint):
            result += keys(group, f"{path}.")
        elif group := mapping_of(hint):
            result += keys(group, f"{path}.NAME.")
        else:
            result.append(Key(path, str(field_type(hint)), repr(field.default), meanings[field.name]))
    return result


def reference_text(cls: type = schema.Config) -> str:
    """Formats the keys as plain lines for ``--help``."""
    return "\n".join(f"  {key.path} ({key.type}, default {key.default})\n      {key.meaning}" for key in keys(cls))


def reference_markdown() -> str:
    """Formats the keys as Markdown: a section with a table for each group of keys."""
    groups: dict[str, list[Key]] = {}
    for key in keys():
        groups.setdefault(key.path.rpartition(".")[0], []).append(key)
    return "\n".join(_section(name or "Experiment", group) for name, group in groups.items())


def _section(name: str, group: list[Key]) -> str:
    rows = [f"| `{key.path}` | {key.type.removeprefix('one of ')} | `{key.default}` | {key.meaning} |" for key in group]
    return "\n".join(
        [f"## {name}", "", "| key | type, or values | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    )


def _meanings(cls: type) -> dict[str, str]:
    """Reads the text behind ``#:`` of every field from the class's source."""
    meanings = dict(re.findall(r"^    (\w+): .*?  #: (.*)$", inspect.getsource(cls), re.MULTILINE))
    missing = [field.name for field in dataclasses.fields(cls) if field.name not in meanings]
    if missing:
        raise ValueError(f"{cls.__name__} fields without a '#:' meaning: {missing}")
    return meanings
