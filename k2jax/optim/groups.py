"""Optimizer groups: the rule that updates a weight follows from its role, and every weight is in exactly one group."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from k2jax.config.schema import OptimizerConfig
from k2jax.params import VISION, ParamSpec, Specs, map_specs, named_specs

_GROUPS = {
    "matrix": "muon",
    "router": "adamw",
    "embedding": "adamw",
    "head": "adamw",
    "norm": "adamw",
    "bias": "adamw",
    "router_bias": "balance",
}
FROZEN = "frozen"
_DECAYING = ("matrix", "router", "embedding", "head")


class GroupRow(NamedTuple):
    """One weight in the log's table.

    Attributes:
        name: path of the weight.
        shape: its shape.
        group: ``muon``, ``adamw`` or ``balance``, with the part of the model that is not its decoder; or ``frozen``.
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
    return "adamw" if group == "muon" and config.name == "adamw" else group


def decays(spec: ParamSpec) -> bool:
    """Whether weight decay applies: to all matrices, embedding, head and router included, not to norms and biases."""
    return spec.role in _DECAYING


def parts_of(specs: Specs) -> Any:
    """The part of the model that every weight belongs to, ``text``, ``tower`` or ``projector``, in their structure."""
    part = lambda name, tree: map_specs(lambda spec: name, tree)  # noqa: E731
    parts = {name: part("text", tree) for name, tree in specs.items() if name != VISION}
    if vision := specs.get(VISION):
        parts[VISION] = {
            name: part("projector" if name == "projector" else "tower", tree) for name, tree in vision.items()
        }
    return parts


def without_frozen(specs: Specs, config: OptimizerConfig, grads: Any) -> Any:
    """Gradients with zeros for the parts that do not learn."""
    if not config.frozen:
        return grads
    zero = lambda part, grad: jnp.zeros_like(grad) if part in config.frozen else grad  # noqa: E731
    return jax.tree.map(zero, parts_of(specs), grads)


def group_labels(specs: Specs, config: OptimizerConfig) -> Any:
    """Label of the rule that updates each weight, in the structure of the parameters.

    It is the group, for a part with a learning rate of its own ``group/part``, and ``frozen`` for a part that does not
    learn.
    """

    def label(spec: ParamSpec, part: str) -> str:
        if part in config.frozen:
            return FROZEN
        return group_of(spec, config) if part == "text" else f"{group_of(spec, config)}/{part}"

    return map_specs(label, specs, parts_of(specs))


def group_table(specs: Specs, config: OptimizerConfig) -> list[GroupRow]:
    """Rows of the training log's table, one for each weight, in tree order."""
    labels = jax.tree.leaves(group_labels(specs, config))
    named = zip(named_specs(specs), labels, strict=True)
    return [GroupRow(name, spec.shape, label, decays(spec) and label != FROZEN) for (name, spec), label in named]
