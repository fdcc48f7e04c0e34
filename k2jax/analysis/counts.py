"""FLOPs and bytes of a traced function, counted from its jaxpr: products and what Pallas kernels declare.

XLA's own cost analysis counts the body of a loop once and sees nothing inside a kernel. Here a scan's body counts as
often as it runs, a kernel is what its ``pl.CostEstimate`` says, and a product is its FLOPs and its operands and result.
Elementwise work is left out: XLA fuses it into its neighbours.

Inside a shard_map shapes are those of one device. Outside, they are those of the whole mesh, and work is taken to be
shared out evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import math
from types import MappingProxyType
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

    def times(self, count: float) -> Counts:
        """As often as a loop runs, or as a branch is taken on average."""
        return Counts(*(count * number for number in self))

    def shared(self, devices: int) -> Counts:
        """One device's part of what several share out."""
        return Counts(self.flops / devices, self.bytes / devices, self.kernels) if devices > 1 else self


class Known(NamedTuple):
    """What a program does not say of itself.

    Attributes:
        taken: in an outermost loop of this length, the share of its runs that take a condition's branch; 1 if absent.
        rows_in_use: of the rows that kernels of experts declare, which are all that there is room for.
    """

    taken: Mapping[int, float] = MappingProxyType({})
    rows_in_use: float = 1.0

    def of_kernel(self, name: str, amount: float) -> float:
        """What a kernel of this name does of what it declares."""
        return amount * self.rows_in_use if name.startswith(_OF_EXPERTS) else amount


_OF_EXPERTS = ("routed_experts", "grouped_matmul")


class Tick(NamedTuple):
    """A run of an outermost loop, or all that is outside of loops; of one device.

    Attributes:
        times: how often the loop runs.
        counts: of one run.
        optimizer: under the named scope ``optimizer``.
    """

    times: int
    counts: Counts
    optimizer: bool


def count(jaxpr: core.Jaxpr, devices: int = 1, known: Known = Known()) -> Counts:  # noqa: B008  (immutable)
    """Counts of a jaxpr and everything it calls. Of the branches of a condition, the one with the most FLOPs.

    Args:
        jaxpr: traced.
        devices: among which work outside of shard_maps is shared.
        known: of the program.
    """
    return sum((one.counts.times(one.times) for one in ticks(jaxpr, devices, known)), Counts())


def ticks(jaxpr: core.Jaxpr, devices: int = 1, known: Known = Known()) -> list[Tick]:  # noqa: B008  (immutable)
    """The same, apart for every run of an outermost loop: of a pipeline these are its ticks."""
    straight = {False: Counts(), True: Counts()}
    loops: list[Tick] = []

    def walk(jaxpr: core.Jaxpr, devices: int, optimizer: bool) -> None:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            within = optimizer or "optimizer" in str(equation.source_info.name_stack)
            inner = list(_inner(params))
            if name == "scan":
                share = known.taken.get(params["length"], 1)
                loops.append(Tick(params["length"], _sum(inner[0], devices, share, known), within))
            elif name in ("cond", "while", "pallas_call") or not inner:
                straight[within] += _one(equation, devices, 1, known)
            else:
                for part in inner:
                    walk(part, 1 if name == "shard_map" else devices, within)

    walk(jaxpr, devices, False)
    return [*loops, *(Tick(1, counts, within) for within, counts in straight.items())]


def _sum(jaxpr: core.Jaxpr, devices: int, share: float, known: Known) -> Counts:
    return sum((_one(equation, devices, share, known) for equation in jaxpr.eqns), Counts())


def _one(equation: Any, devices: int, share: float, known: Known) -> Counts:
    name, params = equation.primitive.name, equation.params
    if name == "pallas_call":
        estimate = params["cost_estimate"]
        if estimate is None:
            raise ValueError(f"the kernel {params.get('name')} declares no cost")
        amounts = (known.of_kernel(params["name"] or "", one) for one in (estimate.flops, estimate.bytes_accessed))
        return Counts(*amounts, 1).shared(devices)
    if name == "dot_general":
        return _product(equation).shared(devices)
    if name == "cond":
        branches = (_sum(branch.jaxpr, devices, 1, known) for branch in params["branches"])
        return max(branches, key=lambda one: one.flops).times(share)
    inside = 1 if name == "shard_map" else devices
    if name == "scan":
        return _sum(next(_inner(params)), inside, 1, known).times(params["length"])
    return sum((_sum(inner, inside, share, known) for inner in _inner(params)), Counts())


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
