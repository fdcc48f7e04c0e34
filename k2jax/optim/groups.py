"""Optimizer groups: the rule that updates a weight follows from its role, and every weight is in exactly one group."""

from __future__ import annotations

from typing import Any, NamedTuple

from k2jax.config.schema import OptimizerConfig
from k2jax.params import ParamSpec, Specs, map_specs, named_specs

_GROUPS = {
    "matrix": "muon",
    "router": "adamw",  # muon with optimizer.muon_router
    "embedding": "adamw",
    "head": "adamw",
    "norm": "adamw",
    "bias": "adamw",
    "router_bias": "balance",
}
_DECAYING = ("matrix", "router", "embedding", "head")


class GroupRow(NamedTuple):
    """One weight in the log's table.

    Attributes:
        name: path of the weight.
        shape: its shape.
        group: ``muon``, ``adamw`` or ``balance``.
        decays: whether weight decay applies.
    """

    name: str
    shape: tuple[int, ...]
    group: str
    decays: bool


def group_of(spec: ParamSpec, config: OptimizerConfig) -> str:
    """Group of a weight: ``muon``, ``adamw`` or ``balance``.

    Raises:
        ValueError: if the role has no group. Without this error the weight would silently stay frozen.
    """
    if spec.role not in _GROUPS:
        raise ValueError(f"no optimizer group for role {spec.role!r} of {spec.hf}")
    group = _GROUPS[spec.role]
    if spec.role == "router" and config.muon_router:
        group = "muon"
    return "adamw" if group == "muon" and config.name == "adamw" else group


def decays(spec: ParamSpec) -> bool:
    """Whether weight decay applies: to all matrices, embedding, head and router included, not to norms and biases."""
    return spec.role in _DECAYING


def group_labels(specs: Specs, config: OptimizerConfig) -> Any:
    """Group of every weight, in the structure of the parameters."""
    return map_specs(lambda spec: group_of(spec, config), specs)


def group_table(specs: Specs, config: OptimizerConfig) -> list[GroupRow]:
    """Rows of the training log's table, one for each weight, in tree order."""
    return [GroupRow(name, spec.shape, group_of(spec, config), decays(spec)) for name, spec in named_specs(specs)]
