"""What was changed between the starts of a run: kept in its checkpoints, said at a start, and listed in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from k2jax.config.identity import fixed_keys, flat_keys
from k2jax.config.schema import Config

QUIET = ("checkpoint.", "log.", "data.cache_dir")
"""Beginnings of keys that change nothing of what is computed."""


class Change(NamedTuple):
    """A key that has another value from a step on.

    Attributes:
        step: the last step with the value before.
        key: of the configuration.
        before: JSON value.
        now: JSON value.
    """

    step: int
    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"config.{self.key} was {self.before!r} up to step {self.step:,} and is {self.now!r} now"


def settings(config: Config) -> dict[str, Any]:
    """The values that may differ between two starts of a run, JSON values by the key's full name."""
    fixed = fixed_keys(config)
    return {key: value for key, value in flat_keys(config).items() if key not in fixed and not key.startswith(QUIET)}


def changes_of(meta: Mapping[str, Any], step: int, config: Config) -> tuple[list[Change], list[Change]]:
    """The changes that a checkpoint knows of, and those made since it was saved.

    Args:
        meta: of the checkpoint; empty at the beginning of a run.
        step: of the checkpoint.
        config: of this start.
    """
    before, now = meta.get("settings", {}), settings(config)
    new = [
        Change(step, key, before[key], now[key])
        for key in sorted(before.keys() & now.keys())
        if before[key] != now[key]
    ]
    return [Change(*entry) for entry in meta.get("changes", [])], new
