"""HBM of one device by what it holds: of a compiled program, whose total is the compiler's."""

from __future__ import annotations

from collections import Counter
import math
from typing import Any, NamedTuple

import jax
from jax.extend import core
import numpy as np

from k2jax.chips import Chip


class Hbm(NamedTuple):
    """Bytes of one device.

    Attributes:
        parts: by what they are for; they add up to the total.
        limit: capacity of the device.
        empty: of the parts, what pipeline slots without a layer take.
    """

    parts: dict[str, float]
    limit: float
    empty: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())

    @property
    def needs(self) -> str:
        """Total and capacity as text: ``71.7 GB of 95 GB``."""
        return f"{self.total / 1e9:.1f} GB of {self.limit / 1e9:.0f} GB"

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.total <= self.limit


class LoopBuffers(NamedTuple):
    """Bytes of one device that a program's largest outermost loop holds from one run to the next."""

    weights: int
    gradients: int
    activations: int


def hbm(chip: Chip, memory: Any, params: Any, state: Any, buffers: LoopBuffers, empty: float = 0.0) -> Hbm:
    """The table of a compiled program.

    Args:
        chip: of the device.
        memory: ``compiled.memory_analysis()``.
        params: ShapeDtypeStructs with shardings, at rest.
        state: all that the step takes and returns changed, ``params`` included.
        buffers: of its loops. They divide what the compiler reports as temporary; where it shares memory between them
            and results, the remainder is negative and called ``counted twice``.
        empty: bytes of all that in pipeline slots without a layer.
    """
    parameters, all_state = shard_bytes(params), shard_bytes(state)
    rest = memory.temp_size_in_bytes - sum(buffers)
    return Hbm(
        {
            "parameters": parameters,
            "optimizer state": all_state - parameters,
            "batch": memory.argument_size_in_bytes - all_state,
            "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
            "compute copy": buffers.weights,
            "gradients": buffers.gradients,
            "activations": buffers.activations,
            "other temporaries" if rest >= 0 else "counted twice": rest,
        },
        chip.hbm_bytes / chip.devices,
        empty,
    )


def shard_bytes(tree: Any) -> int:
    """Bytes of one device's shards of ShapeDtypeStructs with shardings."""
    sizes = (math.prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))
    return sum(sizes)


def loop_buffers(jaxpr: core.Jaxpr) -> LoopBuffers:
    """What the outermost loops of a jaxpr's shard_maps hold: the loop that holds most counts.

    A loop's constants are weights, and carried arrays of the shapes of weights are their gradients; what else it
    carries or stacks are activations.
    """
    buffers = [_buffers(loop) for loop in _loops(jaxpr, False)]
    return max(buffers, key=lambda held: (sum(held[1:]), held.weights), default=LoopBuffers(0, 0, 0))


def _loops(jaxpr: core.Jaxpr, mapped: bool) -> list[Any]:
    loops = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            loops += [equation] if mapped else []
            continue
        within = mapped or equation.primitive.name == "shard_map"
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)  # of a ClosedJaxpr
            if isinstance(inner, core.Jaxpr):
                loops += _loops(inner, within)
    return loops


def _buffers(loop: Any) -> LoopBuffers:
    constants, carried = loop.params["num_consts"], loop.params["num_carry"]
    weights = [var.aval for var in loop.invars[:constants] if var.aval.dtype.name.startswith(("bfloat", "float"))]
    shapes = Counter(aval.shape for aval in weights if aval.ndim > 1)
    gradients = activations = 0
    for var in loop.outvars[:carried]:
        if shapes[var.aval.shape]:
            shapes[var.aval.shape] -= 1
            gradients += _bytes(var.aval)
        else:
            activations += _bytes(var.aval)
    activations += sum(_bytes(var.aval) for var in loop.outvars[carried:])
    return LoopBuffers(sum(map(_bytes, weights)), gradients, activations)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize
