"""FLOPs and bytes of a traced function, counted from its jaxpr: products and what Pallas kernels declare.

XLA's own cost analysis counts the body of a loop once and sees nothing inside a kernel. Here a scan's body counts as
often as it runs, a kernel is what its ``pl.CostEstimate`` says, and a product is its FLOPs and its operands and result.
Elementwise work is left out: XLA fuses it into its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import Any, NamedTuple

from jax.extend import core


class Counts(NamedTuple):
    """Of one device.

    Attributes:
        flops: a multiply-add is two.
        bytes: read from and written to HBM.
        kernels: Pallas calls.
    """

    flops: int = 0
    bytes: int = 0
    kernels: int = 0

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]
        """Both, one after the other."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> Counts:
        """As often as a loop runs."""
        return Counts(*(count * number for number in self))


def count(jaxpr: core.Jaxpr) -> Counts:
    """Counts of a jaxpr and everything it calls. Of the branches of a condition, the one with the most FLOPs."""
    total = Counts()
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "pallas_call":
            estimate = params["cost_estimate"]
            if estimate is None:
                raise ValueError(f"the kernel {params.get('name')} declares no cost")
            total += Counts(estimate.flops, estimate.bytes_accessed, 1)
        elif name == "dot_general":
            total += _product(equation)
        elif name == "cond":
            total += max((count(branch.jaxpr) for branch in params["branches"]), key=lambda one: one.flops)
        else:
            inner = sum((count(inner) for inner in _inner(params)), Counts())
            total += inner.times(params["length"] if name == "scan" else 1)
    return total


def _product(equation: Any) -> Counts:
    ((contracted, _), _), out = equation.params["dimension_numbers"], equation.outvars[0].aval
    left = equation.invars[0].aval
    depth = math.prod(left.shape[axis] for axis in contracted)
    moved = sum(var.aval.size * var.aval.dtype.itemsize for var in (*equation.invars, *equation.outvars))
    return Counts(2 * out.size * depth, moved)


def _inner(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
    for value in params.values():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one
