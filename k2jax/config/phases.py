"""The phases of one run, each with the whole configuration that holds in it; a run without phases is one by itself.

What a phase declares, ``config.phases.NAME``, is applied to the run's configuration once, here. Everything else takes
the configuration of a phase as that of a run: programs, batches, validation, ahead-of-time compilation.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import re
from typing import Any, NamedTuple

from k2jax.config.fields import FieldType, field_type, group_of, hints_of, mapping_of
from k2jax.config.replace import replace_keys
from k2jax.config.schema import Config, SourceConfig
from k2jax.errors import UserError, nearest

OVERRIDDEN = (
    r"data\.(sequence_length|images\.(patches|rows|image_patches|share))|model\.yarn\..*|parallel\..*"
    r"|train\.(batch_size|micro_batches|gradient_dtype|remat|keep|recompute|store_fp8|offload|keep_across)"
)
"""Keys that a phase may change: the state stays one of the same model, and the data those of the run."""


class RunPhase(NamedTuple):
    """A phase of a run.

    Attributes:
        name: empty in a run without phases.
        first: steps of the run before it.
        last: its last step, counted from 1 as the run counts them.
        config: what holds in it; ``phases`` and ``train.steps`` are those of the whole run.
    """

    name: str
    first: int
    last: int
    config: Config

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return self.last - self.first

    @property
    def tokens(self) -> int:
        """Tokens of its rows, padding included."""
        return self.steps * self.config.train.batch_size * self.config.data.sequence_length


def run_phases(config: Config) -> list[RunPhase]:
    """The phases of a run, in order; the whole run where it has none. Those that begin behind its end are left out.

    Raises:
        UserError: a phase overrides what it may not, or a value is none of its key.
    """
    if not config.phases:
        return [RunPhase("", 0, config.train.steps, config)]
    names = sorted(config.phases, key=lambda name: config.phases[name].begin)
    begins = [*(config.phases[name].begin for name in names), config.train.steps]
    return [
        RunPhase(name, first, min(last, config.train.steps), _config_of(config, name))
        for name, (first, last) in zip(names, itertools.pairwise(begins), strict=True)
        if first < config.train.steps
    ]


def phase_at(config: Config, step: int) -> RunPhase:
    """The phase that does a step, counted from 1; the first one for 0, and the last one beyond the end."""
    phases = run_phases(config)
    return next((phase for phase in phases if step <= phase.last), phases[-1])


def phase_named(config: Config, name: str) -> RunPhase:
    """The phase of a name.

    Raises:
        UserError: the run has none of that name, or ends before it.
    """
    if not config.phases:
        raise UserError(f"there is no phase {name!r}: the configuration has no phases")
    if name not in config.phases:
        raise UserError(f"there is no phase {name!r}{nearest(name, list(config.phases))}")
    named = [phase for phase in run_phases(config) if phase.name == name]
    if not named:
        raise UserError(f"config.phases.{name}.begin is not before the end of the run; raise config.train.steps")
    return named[0]


def _config_of(config: Config, name: str) -> Config:
    phase = config.phases[name]
    changes = _overridden(phase.overrides, f"config.phases.{name}.overrides")
    if phase.mixture:
        changes["data.sources"] = _mixture(phase.mixture, config.data.sources, f"config.phases.{name}.mixture")
    return replace_keys(config, changes)


def _pairs(texts: Sequence[str], key: str, form: str) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dictionary."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{key}: {text!r} must be {form}")
        if name in pairs:
            raise UserError(f"{key} names {name} twice")
        pairs[name] = value
    return pairs


def _mixture(texts: Sequence[str], sources: Mapping[str, SourceConfig], key: str) -> dict[str, SourceConfig]:
    mixture = {}
    for name, text in _pairs(texts, key, "NAME=WEIGHT").items():
        if name not in sources:
            raise UserError(f"{key}: config.data.sources has no {name!r}{nearest(name, list(sources))}")
        weight = _value(FieldType(float), text, f"{key}: the weight of {name}")
        mixture[name] = dataclasses.replace(sources[name], weight=weight)
    return mixture


def _overridden(texts: Sequence[str], key: str) -> dict[str, Any]:
    changes = {}
    for name, text in _pairs(texts, key, "KEY=VALUE").items():
        declared = _declared(name)
        if declared is None or not re.fullmatch(OVERRIDDEN, name):
            raise UserError(f"{key}: {name!r} is no key that a phase may change{nearest(name, _overridable())}")
        changes[name] = _value(declared, text, f"{key}: {name}")
    return changes


def _overridable(cls: type = Config, prefix: str = "") -> list[str]:
    keys = []
    for name, hint in hints_of(cls).items():
        if group := group_of(hint):
            keys += _overridable(group, f"{prefix}{name}.")
        elif not mapping_of(hint) and re.fullmatch(OVERRIDDEN, prefix + name):
            keys.append(prefix + name)
    return keys


def _declared(key: str) -> FieldType | None:
    """What a key accepts; None where there is no such key."""
    cls: type | None = Config
    *groups, last = key.split(".")
    for name in groups:
        cls = group_of(hints_of(cls).get(name)) if cls else None
    hint = hints_of(cls).get(last) if cls else None
    return None if hint is None or group_of(hint) or mapping_of(hint) else field_type(hint)


def _value(declared: FieldType, text: str, what: str) -> Any:
    """The value that a text stands for; its range is checked with the phase's configuration."""
    if declared.base is str and not declared.is_tuple:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UserError(f"{what} must be {declared}, not {text!r}") from None
    if declared.is_tuple:
        elements = value if isinstance(value, tuple) else (value,)
        return tuple(_element(declared, element, what) for element in elements)
    return _element(declared, value, what)


def _element(declared: FieldType, value: Any, what: str) -> Any:
    if declared.base is float and type(value) is int:
        return float(value)
    if type(value) is not declared.base:
        raise UserError(f"{what} must be {declared}, not {value!r}")
    return value
