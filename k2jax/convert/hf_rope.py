"""Rotary positions of a ``config.json``: read from ``rope_scaling`` or ``rope_parameters`` as transformers does."""

from __future__ import annotations

from typing import Any, NamedTuple

from k2jax.config.schema import Llama3RopeConfig, ModelConfig, YarnConfig
from k2jax.convert.json_values import Values
from k2jax.errors import UserError

THETA = 10000.0
"""Base of the architectures that are read, where a file has none."""
_LARGEST_THETA, _LARGEST_FACTOR, _LARGEST_BETA = 1e15, 1e6, 1e9
_MOST_POSITIONS = 1 << 40


class Rope(NamedTuple):
    """Rotary base and context extension.

    Attributes:
        theta: the base.
        yarn: YaRN, with factor 1 where it is off.
        llama3: Llama 3's extension, likewise.
        notes: lines for the user about values that have no effect.
    """

    theta: float
    yarn: YarnConfig
    llama3: Llama3RopeConfig
    notes: list[str]


def read_rope(values: Values) -> Rope:
    """Reads what transformers 5 applies: a ``rope_scaling`` with keys replaces ``rope_parameters`` as a whole.

    The base is that of the group which is used, else the one beside it, else the default of the architecture.

    Raises:
        UserError: a value is missing, out of range or not supported.
    """
    parameters, scaling = values.group("rope_parameters"), values.group("rope_scaling")
    group, notes = scaling or parameters or Values({}), []
    if scaling and parameters and scaling != parameters:
        notes.append("rope_scaling is used as it stands, and not rope_parameters beside it, as transformers does")
    kind = group.text("rope_type", group.text("type", "default"))
    _check_kind(values, group, kind)
    outer = values.number("rope_theta", 1.0, _LARGEST_THETA, THETA)
    theta = group.number("rope_theta", 1.0, _LARGEST_THETA, outer)
    if theta <= 1.0:
        raise UserError(f"rope_theta {theta} must be above 1: no rotation would be slower than another")
    if theta != outer and values.peek("rope_theta") is not None:
        notes.append(f"rope_theta {outer:g} is not used: rope_parameters or rope_scaling says {theta:g}")
    yarn = _read_yarn(values, group) if kind == "yarn" else YarnConfig()
    llama3 = _read_llama3(values, group) if kind == "llama3" else Llama3RopeConfig()
    if unread := list(group.unread()):
        notes.append(f"rope_type {kind!r} does not read {', '.join(unread)}, which rope_scaling or rope_parameters has")
    return Rope(theta, yarn, llama3, notes)


def _check_kind(values: Values, group: Values, kind: str) -> None:
    if nested := [key for key in group.unread() if isinstance(group.peek(key), dict)]:
        raise UserError(f"rotary positions that differ between layers ({', '.join(nested)}) are not supported")
    for place in (values, group):
        if place.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise UserError("partial_rotary_factor is not supported")
    if kind not in ("default", "yarn", "llama3"):
        raise UserError(f"rope_type {kind!r} is not supported; default, yarn and llama3 are")


def _read_yarn(values: Values, group: Values) -> YarnConfig:
    if group.raw("attention_factor") is not None or group.raw("truncate", True) is not True:
        raise UserError("YaRN with attention_factor or without truncate is not supported")
    return YarnConfig(
        factor=group.number("factor", 1.0, _LARGEST_FACTOR),
        beta_fast=group.number("beta_fast", 0.0, _LARGEST_BETA, None) or 32.0,  # 0 counts as missing in transformers
        beta_slow=group.number("beta_slow", 0.0, _LARGEST_BETA, None) or 1.0,
        mscale=group.number("mscale", 0.0, _LARGEST_FACTOR, None) or 0.0,
        mscale_all_dim=group.number("mscale_all_dim", 0.0, _LARGEST_FACTOR, None) or 0.0,
        original_positions=_original_positions(values, group),
    )


def _read_llama3(values: Values, group: Values) -> Llama3RopeConfig:
    low, high = (group.number(key, 0.0, _LARGEST_FACTOR) for key in ("low_freq_factor", "high_freq_factor"))
    if not 0.0 < low < high:
        raise UserError(f"rope_type 'llama3' needs 0 < low_freq_factor < high_freq_factor, not {low:g} and {high:g}")
    factor, positions = group.number("factor", 1.0, _LARGEST_FACTOR), _original_positions(values, group)
    return Llama3RopeConfig(factor=factor, low_freq_factor=low, high_freq_factor=high, original_positions=positions)


def _original_positions(values: Values, group: Values) -> int:
    """The context length before its extension; the one beside the group counts before the one within."""
    key = "original_max_position_embeddings"
    inner = group.whole(key, 1, _MOST_POSITIONS, 0)
    outer = values.whole(key, 1, _MOST_POSITIONS, None)
    return outer or inner or values.whole("max_position_embeddings", 1, _MOST_POSITIONS)


def rope_parameters(model: ModelConfig) -> dict[str, Any]:
    """Returns the ``rope_parameters`` of an export."""
    values: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.yarn.factor > 1.0:
        values |= {
            "rope_type": "yarn",
            "factor": model.yarn.factor,
            "beta_fast": model.yarn.beta_fast,
            "beta_slow": model.yarn.beta_slow,
            "original_max_position_embeddings": model.yarn.original_positions,
        }
        values |= {key: getattr(model.yarn, key) for key in ("mscale", "mscale_all_dim") if getattr(model.yarn, key)}
    elif model.llama3_rope.factor > 1.0:
        values |= {
            "rope_type": "llama3",
            "factor": model.llama3_rope.factor,
            "low_freq_factor": model.llama3_rope.low_freq_factor,
            "high_freq_factor": model.llama3_rope.high_freq_factor,
            "original_max_position_embeddings": model.llama3_rope.original_positions,
        }
    return values
