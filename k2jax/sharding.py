"""Where weights live on a mesh: logical axes of ParamSpec to mesh axes, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from k2jax.errors import UserError
from k2jax.params import ParamSpec, Specs, is_spec, named_specs

TENSOR = "tensor"  # the mesh axis whose devices share every layer: each has some heads and some of the hidden width

CONTEXT = "context"  # the mesh axis whose devices share every row of a batch: each has some of its tokens

_SHARED = {"heads": TENSOR, "kv_heads": TENSOR, "ffn": TENSOR}

RULES = {"layers": "stage", "experts": "expert", **_SHARED, "vocab": TENSOR}
"""Logical axis to mesh axis. A mesh without that axis leaves the logical one whole, on every device."""

PIPELINE = {"stages": "stage", "experts": "expert", **_SHARED}
"""The same for the layers of a training step, which pipeline stages share out."""

WITHOUT_PIPELINE = {**_SHARED, "vocab": TENSOR}
"""And for what comes before and after them where there is one stage."""

AROUND_PIPELINE = {"heads": "stage", "kv_heads": "stage", "ffn": "stage", "vocab": "stage"}
"""And where there are several: all of them compute it together."""

WHOLE_ROLES = ("router", "router_bias")  # every rank scores all experts


def partition_spec(name: str, spec: ParamSpec, mesh: Mesh, rules: Mapping[str, str] = RULES) -> PartitionSpec:
    """Mesh axes of one weight.

    Args:
        name: of the weight, for errors.
        spec: its declaration.
        mesh: its axes' names and sizes count, not its devices.
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
    """A NamedSharding for every weight of a spec tree.

    Raises:
        UserError: as ``partition_spec``.
    """
    leaves = [NamedSharding(mesh, partition_spec(name, spec, mesh, rules)) for name, spec in named_specs(specs)]
    return jax.tree.unflatten(jax.tree.structure(specs, is_leaf=is_spec), leaves)


def neighbours(size: int, ranks: int) -> list[int]:
    """The divisors of ``size`` next to ``ranks`` on either side."""
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    below = [number for number in divisors if number < ranks]
    above = [number for number in divisors if number > ranks]
    return [*below[-1:], *above[:1]]
