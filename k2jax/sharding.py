"""Sharding of weights: the table from logical axes of ParamSpec to mesh axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from k2jax.errors import UserError
from k2jax.params import ParamSpec, Specs, is_spec, named_specs

TENSOR = "tensor"  # mesh axis that shards every layer's heads and hidden width

STAGE = "stage"  # mesh axis of pipeline stages; it shards the layers, and slices of the weights around them

CONTEXT = "context"  # mesh axis that shards the tokens of every row of a batch

_SHARED = {"heads": TENSOR, "kv_heads": TENSOR, "ffn": TENSOR}

RULES = {"layers": "stage", "experts": "expert", **_SHARED, "vocab": TENSOR}
"""Logical axis to mesh axis. On a mesh without that mesh axis, the logical axis is replicated."""

PIPELINE = {"stages": "stage", "experts": "expert", **_SHARED}
"""The rules of a training step's layers, which are distributed over pipeline stages."""

WITHOUT_PIPELINE = {**_SHARED, "vocab": TENSOR}
"""The rules of the weights before and after these layers, with one pipeline stage."""

AROUND_PIPELINE = {"heads": "stage", "kv_heads": "stage", "ffn": "stage", "vocab": "stage"}
"""The same with several pipeline stages, which compute these parts together."""

WHOLE_ROLES = ("router", "router_bias")  # every rank scores all experts


def partition_spec(name: str, spec: ParamSpec, mesh: Mesh, rules: Mapping[str, str] = RULES) -> PartitionSpec:
    """Returns the mesh axes of one weight.

    Args:
        name: name of the weight, for errors.
        spec: its declaration.
        mesh: only the names and sizes of its axes are read.
        rules: as ``RULES``.

    Raises:
        UserError: two axes of the weight go to one mesh axis, or a size does not divide; it names the sizes that would.
    """
    placed: dict[str, str] = {}  # mesh axis -> logical axis
    entries: list[str | None] = []
    for axis, size in zip(spec.axes, spec.shape, strict=True):
        target = rules.get(axis)
        if target not in mesh.shape or (axis == "experts" and spec.role in WHOLE_ROLES):
            entries.append(None)
            continue
        if target in placed:
            raise UserError(f"{name}: {placed[target]} and {axis} would both be sharded over the mesh axis {target}")
        placed[target] = axis
        if size % mesh.shape[target]:
            raise UserError(
                f"{name}: {size} {axis} do not divide over {mesh.shape[target]} of the mesh axis {target}; "
                f"{' or '.join(map(str, neighbours(size, mesh.shape[target])))} would"
            )
        entries.append(target)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def param_shardings(specs: Specs, mesh: Mesh, rules: Mapping[str, str] = RULES) -> Any:
    """Returns a NamedSharding for every weight of a spec tree.

    Raises:
        UserError: as ``partition_spec``.
    """
    leaves = [NamedSharding(mesh, partition_spec(name, spec, mesh, rules)) for name, spec in named_specs(specs)]
    return jax.tree.unflatten(jax.tree.structure(specs, is_leaf=is_spec), leaves)


def neighbours(size: int, ranks: int) -> list[int]:
    """Returns the divisors of ``size`` nearest to ``ranks``, below and above."""
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    below = [number for number in divisors if number < ranks]
    above = [number for number in divisors if number > ranks]
    return [*below[-1:], *above[:1]]
