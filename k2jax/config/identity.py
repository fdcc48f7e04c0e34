"""What a run keeps from its first step to its last, and what therefore ties a checkpoint to its configuration."""

from __future__ import annotations

from collections.abc import Mapping
import json
import re
from typing import Any

from k2jax.config.build import to_json
from k2jax.config.phases import run_phases
from k2jax.config.schema import Config

FIXED = (
    "stage",
    "model",
    "data",
    "optimizer.name",
    "train.batch_size",
    "train.seed",
    "init_from",
    "init_tower_from",
    "rl.tasks",
    "rl.roles",
    "rl.rollout.sampler",
    "rl.rollout.prompts",
    "rl.rollout.samples",
    "rl.rollout.token_cap",
    "rl.rollout.max_length",
    "rl.updates",
    "rl.loss.ptx_rows",
    "rl.toggle",
    "rl.parl",
    "rl.critic",
)
"""Keys that a run keeps from its first step to its last: they decide the weights' shapes and the order of the data."""

FREE = (
    r"data\.(on_corrupt|workers|cache_dir|sources\..*\.(path|licence|version)|tokenizer\.path)|model\.(moe\.capacity_factor|kernels)"
    r"|rl\.tasks\..*\.pass_rates|rl\.roles\..*\.(checkpoint|later|slots)|rl\.critic\.(url|api_key_variable|concurrency|timeout)"
)
"""Keys below FIXED ones that change neither (of corpora, tasks and roles the contents are compared, not the path)."""


def fixed_keys(config: Config, step: int | None = None) -> dict[str, Any]:
    """The values of the fixed keys, JSON values by the key's full name.

    ``train.steps`` is one where the share of images has phases, which begin at shares of the whole run. Of a run's
    phases, what has begun stays as it was: where each began, and what it changed of the fixed keys.

    Args:
        config: of the run.
        step: steps that were done: phases that begin later may still change. None counts all phases.
    """
    fixed = _own_fixed_keys(config)
    for phase in run_phases(config) if config.phases else ():
        if step is None or phase.first < step:
            own = {"begin": phase.first, "sources": sorted(phase.config.data.sources)}
            own |= {key: value for key, value in _own_fixed_keys(phase.config).items() if fixed[key] != value}
            fixed |= {f"phases.{phase.name}.{key}": value for key, value in own.items()}
    return fixed


def _own_fixed_keys(config: Config) -> dict[str, Any]:
    names = (*FIXED, "train.steps") if len(config.data.images.share) > 1 else FIXED
    return {
        key: value
        for key, value in flat_keys(config).items()
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in names) and not re.fullmatch(FREE, key)
    }


def changed_key(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first key of ``before`` or ``now`` whose value differs; None for none."""
    return next((key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)), None)


def changed_fixed_key(saved: Mapping[str, Any], config: Config, step: int) -> tuple[str, Any, Any] | None:
    """The first fixed key that differs between a checkpoint and a configuration, with both values; None for none.

    Args:
        saved: the fixed keys that were saved with the checkpoint, by a version that may know fewer of them.
        config: of the run now.
        step: of the checkpoint.
    """
    now = fixed_keys(config, step)
    compared = {key: value for key, value in now.items() if key in saved or key.startswith("phases.")}
    key = changed_key(saved, compared)
    return None if key is None else (key, saved.get(key), compared.get(key))


def flat_keys(config: Config) -> dict[str, Any]:
    """All values of a config, JSON values by the key's full name."""
    return _flatten(json.loads(to_json(config)))


def _flatten(value: dict, prefix: str = "") -> dict:
    flat = {}
    for key, item in value.items():
        flat |= _flatten(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
    return flat
