"""FLOPs and bytes of a traced function, counted from its jaxpr: products and what Pallas kernels declare.

XLA's own cost analysis counts the body of a loop once and sees nothing inside a kernel. Here a scan's body counts as
often as it runs, a kernel is what its ``pl.CostEstimate`` says, and a product is its FLOPs and its operands and result.
Elementwise work is left out: XLA fuses it into its neighbours. So are equations whose results nothing reads.

Inside a shard_map shapes are those of one device. Outside, they are those of the whole mesh, and work is taken to be
shared out evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import math
from types import MappingProxyType
from typing import Any, NamedTuple

from jax.extend import core

from k2jax.parallel.decoupled import TOWER


class TracedCost(NamedTuple):
    """Cost of a traced function on one device.

    Attributes:
        flops: a multiply-add is two.
        bytes: read from and written to HBM.
        kernels: Pallas calls.
        host_bytes: copied between HBM and the host's memory.
    """

    flops: float = 0
    bytes: float = 0
    kernels: float = 0
    host_bytes: float = 0

    def __add__(self, other: TracedCost) -> TracedCost:  # type: ignore[override]
        """Sum of two costs."""
        return TracedCost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> TracedCost:
        """Scaled by ``factor``: the runs of a loop, or how often a branch is taken on average."""
        return TracedCost(*(factor * number for number in self))

    def shared(self, devices: int) -> TracedCost:
        """The part of one of several devices that share the work."""
        if devices == 1:
            return self
        return TracedCost(self.flops / devices, self.bytes / devices, self.kernels, self.host_bytes / devices)


class DynamicShares(NamedTuple):
    """Mean shares that are only known when a program runs.

    Attributes:
        taken: for an outermost loop of this length, the share of its runs that take a condition's branch; 1 if absent.
        rows_in_use: of the rows that kernels of experts declare, which are all that there is room for.
        computed_rows: rows that these kernels multiply over the rows in use: those of partly filled sub-blocks too.
    """

    taken: Mapping[int, float] = MappingProxyType({})
    rows_in_use: float = 1.0
    computed_rows: float = 1.0

    def kernel_flops(self, name: str, declared: float) -> float:
        """FLOPs of a kernel of this name, of those that it declares."""
        return declared * self.rows_in_use * self.computed_rows if name.startswith(_OF_EXPERTS) else declared

    def kernel_bytes(self, name: str, declared: float) -> float:
        """HBM bytes of a kernel of this name, of those that it declares."""
        return declared * self.rows_in_use if name.startswith(_OF_EXPERTS) else declared


_OF_EXPERTS = ("routed_experts", "grouped_matmul")
_NOTHING = DynamicShares()


class LoopCost(NamedTuple):
    """One outermost loop, or all that is outside of loops, on one device.

    Attributes:
        times: runs of the loop.
        cost: of one run.
        scope: the one of ``SCOPES`` that it is under; empty for none.
    """

    times: int
    cost: TracedCost
    scope: str = ""

    @property
    def optimizer(self) -> bool:
        """Whether it is the optimizer's."""
        return self.scope == "optimizer"


SCOPES = ("optimizer", TOWER)
"""Named scopes whose work is told apart."""


def traced_cost(jaxpr: core.Jaxpr, devices: int = 1, shares: DynamicShares = _NOTHING) -> TracedCost:
    """Cost of a jaxpr and everything it calls. Of the branches of a condition, the one with the most FLOPs counts.

    Args:
        jaxpr: traced.
        devices: among which work outside of shard_maps is shared.
        shares: of the program.
    """
    return sum((loop.cost.times(loop.times) for loop in loop_costs(jaxpr, devices, shares)), TracedCost())


def loop_costs(jaxpr: core.Jaxpr, devices: int = 1, shares: DynamicShares = _NOTHING) -> list[LoopCost]:
    """``traced_cost`` for every outermost loop apart: the runs of a pipeline's loops are its ticks."""
    straight = {scope: TracedCost() for scope in ("", *SCOPES)}
    loops: list[LoopCost] = []

    def walk(jaxpr: core.Jaxpr, devices: int, scope: str) -> None:
        for equation in _live(jaxpr):
            name, params = equation.primitive.name, equation.params
            stack = str(equation.source_info.name_stack)
            within = scope or next((name for name in SCOPES if name in stack), "")
            inner = list(_inner(params))
            if name == "scan":
                taken = shares.taken.get(params["length"], 1)
                loops.append(LoopCost(params["length"], _sum(inner[0], devices, taken, shares), within))
            elif name in ("cond", "while", "pallas_call") or not inner:
                straight[within] += _equation_cost(equation, devices, 1, shares)
            else:
                for part in inner:
                    walk(part, 1 if name == "shard_map" else devices, within)

    walk(jaxpr, devices, "")
    return [*loops, *(LoopCost(1, cost, within) for within, cost in straight.items())]


def _sum(jaxpr: core.Jaxpr, devices: int, taken: float, shares: DynamicShares) -> TracedCost:
    return sum((_equation_cost(equation, devices, taken, shares) for equation in _live(jaxpr)), TracedCost())


def _equation_cost(equation: Any, devices: int, taken: float, shares: DynamicShares) -> TracedCost:
    name, params = equation.primitive.name, equation.params
    if name == "pallas_call":
        return _kernel_cost(params, shares).shared(devices)
    if name == "dot_general":
        return _product(equation).shared(devices)
    if name == "device_put":
        return _host_copy(equation).shared(devices)
    if name == "cond":
        branches = (_sum(branch, devices, 1, shares) for branch in _inner(params))
        return max(branches, key=lambda cost: cost.flops).times(taken)
    inside = 1 if name == "shard_map" else devices
    if name == "scan":
        return _sum(next(_inner(params)), inside, 1, shares).times(params["length"])
    return sum((_sum(inner, inside, taken, shares) for inner in _inner(params)), TracedCost())


def _kernel_cost(params: dict[str, Any], shares: DynamicShares) -> TracedCost:
    estimate, name = params["cost_estimate"], params["name"] or ""
    if estimate is None:
        raise ValueError(f"the kernel {name} declares no cost")
    return TracedCost(
        shares.kernel_flops(name, estimate.flops), shares.kernel_bytes(name, estimate.bytes_accessed), kernels=1
    )


def _product(equation: Any) -> TracedCost:
    ((contracted, _), _), out = equation.params["dimension_numbers"], equation.outvars[0].aval
    left = equation.invars[0].aval
    depth = math.prod(left.shape[axis] for axis in contracted)
    moved = sum(var.aval.size * var.aval.dtype.itemsize for var in (*equation.invars, *equation.outvars))
    return TracedCost(2 * out.size * depth, moved)


def _host_copy(equation: Any) -> TracedCost:
    """Copies between memories: offloaded activations on their way to the host and back."""
    pairs = zip(equation.invars, equation.outvars, strict=True)
    moved = [out.aval for var, out in pairs if _memory(var) != _memory(out)]
    return TracedCost(host_bytes=sum(aval.size * aval.dtype.itemsize for aval in moved))


def _memory(var: Any) -> Any:
    return getattr(var.aval, "memory_space", None)


def _inner(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
    for value in params.values():
        for part in value if isinstance(value, (list, tuple)) else [value]:
            inner = part.jaxpr if isinstance(part, core.ClosedJaxpr) else part
            if isinstance(inner, core.Jaxpr):
                yield inner


def _live(jaxpr: core.Jaxpr) -> list[Any]:
    """Equations with a result that is read: a recomputed layer repeats kernels for nothing, which XLA removes.

    JAX's own elimination of dead code leaves Pallas calls alone.
    """
    read = {var for var in jaxpr.outvars if not isinstance(var, core.Literal)}
    live = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not read.isdisjoint(equation.outvars):
            live.append(equation)
            read.update(var for var in equation.invars if not isinstance(var, core.Literal))
    return live[::-1]
