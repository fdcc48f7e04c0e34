"""HBM of one device by what it holds: of a compiled program, whose total is the compiler's."""

from __future__ import annotations

from collections import Counter
import math
from typing import Any, NamedTuple

import jax
from jax.extend import core
import numpy as np

from k2jax.analysis.chips import Chip


class Hbm(NamedTuple):
    """Bytes of one device.

    Attributes:
        parts: by what they are for; they add up to the whole.
        limit: what the device has.
        empty: of the parts, what slots of a pipeline take that hold no layer.
    """

    parts: dict[str, float]
    limit: float
    empty: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    @property
    def needs(self) -> str:
        """For people."""
        return f"{self.total / 1e9:.1f} GB of {self.limit / 1e9:.0f} GB"

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.total <= self.limit


class Kept(NamedTuple):
    """What a program's largest outermost loop holds from one run to the next, bytes of one device."""

    weights: int
    gradients: int
    activations: int


def hbm(chip: Chip, taken: Any, params: Any, state: Any, kept: Kept, empty: float = 0.0) -> Hbm:
    """The table of a compiled program.

    Args:
        chip: of the device.
        taken: ``compiled.memory_analysis()``.
        params: ShapeDtypeStructs with shardings, at rest.
        state: all that the step is given and gives back changed, ``params`` included.
        kept: of its loops. What the compiler reports as temporary is divided by these; where it found room for some of
            them in each other or in results, the remainder is negative, and called ``counted twice``.
        empty: of all that, in a pipeline's slots without a layer.
    """
    parameters, all_state = shard_bytes(params), shard_bytes(state)
    rest = taken.temp_size_in_bytes - sum(kept)
    return Hbm(
        {
            "parameters": parameters,
            "optimizer state": all_state - parameters,
            "batch": taken.argument_size_in_bytes - all_state,
            "results": taken.output_size_in_bytes - taken.alias_size_in_bytes,
            "compute copy": kept.weights,
            "gradients": kept.gradients,
            "activations": kept.activations,
            "other temporaries" if rest >= 0 else "counted twice": rest,
        },
        chip.hbm_bytes / chip.devices,
        empty,
    )


def shard_bytes(tree: Any) -> int:
    """Of one device's part of ShapeDtypeStructs with shardings."""
    sizes = (math.prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))
    return sum(sizes)


def kept(jaxpr: core.Jaxpr) -> Kept:
    """What the outermost loops of a jaxpr's shard_maps hold: the one that holds most counts.

    A loop's constants are weights; carried arrays of the shapes of weights are their gradients; what else it carries or
    stacks up are activations.
    """
    found = [_of_loop(loop) for loop in _loops(jaxpr, False)]
    return max(found, key=lambda one: (sum(one[1:]), one.weights), default=Kept(0, 0, 0))


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


def _of_loop(loop: Any) -> Kept:
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
    return Kept(sum(map(_bytes, weights)), gradients, activations)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize
