"""Copies of frozen configurations with some keys changed."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeVar

ConfigT = TypeVar("ConfigT")


def replace_keys(config: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
    """A copy of a frozen configuration, or of a group of one, with new values for some of its keys.

    Types and ranges are not checked; ``resolve`` does that.

    Args:
        config: an instance of a dataclass of ``schema``.
        changes: values by dotted key, relative to ``config``.

    Raises:
        TypeError: ``config`` has no such key.

    Example:
        >>> replace_keys(model, {"layers": 2, "moe.experts": 8})
    """
    known = {field.name for field in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        if name not in known:
            raise TypeError(f"{type(config).__name__} has no key {name!r}")
        if rest:
            groups.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    for name, inner in groups.items():
        values[name] = replace_keys(values.get(name, getattr(config, name)), inner)
    return dataclasses.replace(config, **values)
