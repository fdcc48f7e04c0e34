"""Which rule updates a weight, from its role alone: every weight is in exactly one group."""

from __future__ import annotations

from typing import Any, NamedTuple

from k2jax.config.schema import OptimizerConfig
from k2jax.params import ParamSpec, Specs, map_specs, named_specs

_GROUPS = {
    "matrix": "muon",
    "router": "adamw",  # or muon, by optimizer.muon_router
    "embedding": "adamw",
    "head": "adamw",
    "norm": "adamw",
    "bias": "adamw",
    "router_bias": "balance",
}
_DECAYING = ("matrix", "router", "embedding", "head")


class GroupRow(NamedTuple):
    """One weight in the log's table."""

    name: str
    shape: tuple[int, ...]
    group: str
    decays: bool


def group_of(spec: ParamSpec, config: OptimizerConfig) -> str:
    """``muon``, ``adamw`` or ``balance``.

    Raises:
        ValueError: a role without a group. A weight that no rule updates would be frozen silently.
    """
    if spec.role not in _GROUPS:
        raise ValueError(f"no optimizer group for role {spec.role!r} of {spec.hf}")
    group = _GROUPS[spec.role]
    if spec.role == "router" and config.muon_router:
        group = "muon"
    return "adamw" if group == "muon" and config.name == "adamw" else group


def decays(spec: ParamSpec) -> bool:
    """True for matrices of every kind (embedding, head and router too), false for norms and biases."""
    return spec.role in _DECAYING


def labels(specs: Specs, config: OptimizerConfig) -> Any:
    """The group of every weight, in the structure of the parameters."""
    return map_specs(lambda spec: group_of(spec, config), specs)


def group_table(specs: Specs, config: OptimizerConfig) -> list[GroupRow]:
    """Name, shape, group and decay of every weight, in tree order, for the training log."""
    return [GroupRow(name, spec.shape, group_of(spec, config), decays(spec)) for name, spec in named_specs(specs)]
