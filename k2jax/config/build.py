"""Conversion of the configuration dataclasses to a locked ConfigDict and back, with checks of keys, types and values.

``defaults`` returns a ConfigDict that experiments edit and override; ``resolve`` returns a frozen, typed ``Config``.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import Any, get_args

from ml_collections import ConfigDict, config_dict

from k2jax.config import schema
from k2jax.config.checks import check_combinations
from k2jax.config.fields import check_fields, field_type, group_of, hints_of, mapping_of
from k2jax.config.phase_checks import check_phases
from k2jax.config.presets import method_preset, model_preset, vision_preset
from k2jax.errors import UserError, nearest

FORMAT = 4
"""Number of the format of ``config.json``, raised when a key changes its name or place, or leaves."""


def defaults(stage: str, model: str = "nano", vision: str | None = None, method: str | None = None) -> ConfigDict:
    """Returns a locked ConfigDict with every key of ``schema.Config`` at its default, for ``stage`` and a model preset.

    ``vision`` names a tower to add, and ``method`` a report's reinforcement learning to choose: its loss with band and
    aggregation, advantages, corrections and packing; see ``presets``.

    Example:
        >>> config = defaults("rl", model="moonlight", method="k2.5")
        >>> config.train.steps = 100
    """
    stages = get_args(schema.Stage)
    if stage not in stages:
        raise UserError(f"unknown stage {stage!r}; there are {', '.join(stages)}")
    architecture = model_preset(model)
    if vision is not None:
        architecture = dataclasses.replace(architecture, vision=vision_preset(vision))
    config = to_config_dict(schema.Config(stage=stage, model=architecture))
    config.lock()
    if method is not None:
        config.rl.update_from_flattened_dict(method_preset(method))
    config.data.sources.unlock()  # sources, tasks, roles and phases come and go by name
    config.rl.tasks.unlock()
    config.rl.roles.unlock()
    config.phases.unlock()
    return config


def source(**fields: Any) -> ConfigDict:
    """Returns one entry of ``config.data.sources``, e.g. ``source(kind="text", path="books/", weight=2.0)``."""
    return _entry(schema.SourceConfig, "a data source", fields)


def task(**fields: Any) -> ConfigDict:
    """Returns one entry of ``config.rl.tasks``, e.g. ``task(dataset="characters", options=("kinds=add3",))``."""
    return _entry(schema.TaskConfig, "a class of tasks", fields)


def role(**fields: Any) -> ConfigDict:
    """Returns one entry of ``config.rl.roles``, e.g. ``role(checkpoint="runs/sft", temperature=0.6)``."""
    return _entry(schema.RoleConfig, "a role", fields)


def phase(**fields: Any) -> ConfigDict:
    """Returns one entry of ``config.phases``, e.g. ``phase(begin=500, overrides=("data.sequence_length=2048",))``."""
    return _entry(schema.PhaseConfig, "a phase", fields)


def _entry(cls: type, what: str, fields: Mapping[str, Any]) -> ConfigDict:
    known = [field.name for field in dataclasses.fields(cls)]
    for key in fields:
        if key not in known:
            raise UserError(f"unknown key {key!r} of {what}{nearest(key, known)}")
    return to_config_dict(cls(**fields))


def to_config_dict(value: Any) -> Any:
    """Converts a dataclass, or a mapping of them, to a ConfigDict; optional fields accept None and their type."""
    if isinstance(value, Mapping):
        return ConfigDict({key: to_config_dict(item) for key, item in value.items()})
    if not dataclasses.is_dataclass(value):
        return value
    result = ConfigDict()
    for name, hint in hints_of(type(value)).items():
        item = getattr(value, name)
        if group_of(hint) or mapping_of(hint) or not field_type(hint).optional:
            result[name] = to_config_dict(item)
        else:
            result[name] = config_dict.placeholder(field_type(hint).base)
            if item is not None:
                result[name] = item
    return result


def resolve(config: ConfigDict | Mapping[str, Any] | schema.Config) -> schema.Config:
    """Converts an edited ConfigDict or nested dict to a frozen ``schema.Config`` and checks its values.

    Raises:
        UserError: an unknown key, a value of the wrong type or an impossible combination, in one line that names the
            key and the nearest valid one.
    """
    if not isinstance(config, schema.Config):
        config = _read(schema.Config, config, "")
    check_fields(config)
    check_combinations(config)
    check_phases(config)
    return config


def to_json(config: schema.Config) -> str:
    """Writes a config as indented JSON with the number of its format; ``from_json`` is the inverse."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(config)}, indent=2) + "\n"


def from_json(text: str) -> schema.Config:
    """Reads a config that ``to_json`` wrote.

    Raises:
        UserError: another version of this package wrote it, with other keys, or ``resolve`` refuses a value.
        json.JSONDecodeError: the text is not JSON.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise UserError("it is no configuration, which is a JSON object")
    number = values.pop("format", 1)
    if number != FORMAT:
        age = "an earlier" if isinstance(number, int) and number < FORMAT else "another"
        raise UserError(
            f"it was written by {age} version of k2jax (configuration format {number!r}, this version reads {FORMAT}); "
            "use that version, or start a new workdir"
        )
    return resolve(values)


def _read(annotation: Any, value: Any, path: str) -> Any:
    if group := group_of(annotation):
        return read_group(group, value, path)
    if group := mapping_of(annotation):
        if not isinstance(value, Mapping | ConfigDict):
            raise UserError(f"config.{path} must be a mapping of names, not {value!r}")
        return {key: read_group(group, value[key], f"{path}.{key}") for key in value}
    declared = field_type(annotation)
    if value is None and declared.optional:
        return None
    if declared.is_tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"config.{path} must be a tuple of {declared.base.__name__}, not {value!r}")
        return tuple(_read_value(declared.base, element, path) for element in value)
    return _read_value(declared.base, value, path)


def _read_value(wanted: type, value: Any, path: str) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise UserError(f"config.{path} must be {wanted.__name__}, not {value!r}")
    return value


def read_group(cls: type, value: Any, path: str) -> Any:
    """Converts a nested dict or ConfigDict to a dataclass of configuration, whose values ``check_fields`` checks.

    Args:
        cls: the dataclass.
        value: its fields by name.
        path: its dotted key, for messages.

    Raises:
        UserError: an unknown key, or a value of the wrong type.
    """
    if not isinstance(value, Mapping | ConfigDict):
        raise UserError(f"config.{path} must be a group of keys, not {value!r}")
    hints = hints_of(cls)
    for key in value:
        if key not in hints:
            raise UserError(f"unknown key config.{f'{path}.' if path else ''}{key}{nearest(key, list(hints))}")
    return cls(**{key: _read(hints[key], value[key], f"{path}.{key}" if path else key) for key in value})
