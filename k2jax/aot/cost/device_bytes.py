"""What one device holds of every weight, at rest and in the compute copy."""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from k2jax.aot.cost.expert_rows import BFLOAT16
from k2jax.config.schema import Config
from k2jax.optim.groups import group_of
from k2jax.parallel.layout import Layout, shards_of
from k2jax.params import ParamSpec, named_specs
from k2jax.sharding import WHOLE_ROLES

FLOAT32 = 4
MOMENTS = {"muon": 1, "adamw": 2, "balance": 0}
"""Arrays of the optimizer's state for each of its groups, each as large as the weight."""


def weight_partitions(layout: Layout) -> Iterator[tuple[ParamSpec, PartitionSpec, PartitionSpec]]:
    """Every weight with its partition at rest and that of its compute copy."""
    partitions = lambda tree: jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, PartitionSpec))  # noqa: E731
    specs = [spec for _, spec in named_specs(layout.specs)]
    return zip(specs, partitions(layout.storage), partitions(layout.compute), strict=True)


def local_size(spec: ParamSpec, partition: Any, mesh: Mesh) -> float:
    """Elements of a weight on one device."""
    return math.prod(-(-size // cut) for size, cut in zip(spec.shape, shards_of(spec, partition, mesh), strict=True))


def gradient_bytes(config: Config) -> int:
    """Bytes of one element of the gradients' sum."""
    return FLOAT32 if config.train.gradient_dtype == "float32" else BFLOAT16


def empty_slots(config: Config, layout: Layout) -> float:
    """Bytes of a device, the mean over stages, in pipeline slots without a layer: 60 layers may fill 64 slots.

    Such slots hold parameters, the optimizer's state, the compute copy and gradients like any other slot.
    """
    total = 0.0
    for spec, rest, compute in weight_partitions(layout):
        at_rest = FLOAT32 * (1 + MOMENTS[group_of(spec, config.optimizer)])
        in_use = gradient_bytes(config) + (FLOAT32 if spec.role in WHOLE_ROLES else BFLOAT16)
        held = at_rest * local_size(spec, rest, layout.mesh) + in_use * local_size(spec, compute, layout.mesh)
        total += held * spec.empty / spec.layer_numbers.size
    return total
