"""A compiled program's text as computations and instructions, read once, line by line; loops know how often they run.

XLA prints scheduled computations in the order in which they run, so an instruction's position is its time. What one
runs costs is counted here too: products, which XLA:TPU writes as convolutions, and what Pallas kernels declare.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools
import json
import math
import re
from typing import NamedTuple

import numpy as np

from k2jax.analysis.counts import Known

_LINE = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\(([^)]*)\)?(.*)")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_PASS_ON = ("copy", "copy-start", "copy-done", "bitcast", "convert")


class Instruction(NamedTuple):
    """One line: what it is called, makes, does, reads, and its attributes as printed."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    argument: str
    attributes: str
    root: bool

    def attribute(self, key: str) -> str:
        """A called computation's name: ``body`` of ``body=%region_1``; empty where there is none."""
        found = re.search(rf"\b{key}=%([\w.\-]+)", self.attributes)
        return found[1] if found else ""

    @property
    def branches(self) -> list[str]:
        """Computations of a conditional."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        names = re.findall(r"%([\w.\-]+)", listed[1]) if listed else []
        return names or [name for key in ("true", "false") if (name := self.attribute(f"{key}_computation"))]


class Shape(NamedTuple):
    """An array: its type as XLA writes it, ``bf16`` for instance, and its sides."""

    dtype: str
    sides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Without padding."""
        return math.prod(self.sides) * _bits(self.dtype) // 8


def shapes(text: str) -> list[Shape]:
    """Every array of a printed shape, a tuple's in order."""
    return [
        Shape(dtype, tuple(int(side) for side in sides.split(",") if side)) for dtype, sides in _ARRAY.findall(text)
    ]


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    return int(re.search(r"\d+", dtype)[0])  # bf16, f8e4m3fn, s32


class Computation:
    """Instructions in the order in which they run."""

    def __init__(self, name: str):
        self.name = name
        self.instructions: list[Instruction] = []
        self._places: dict[str, int] = {}

    def add(self, instruction: Instruction) -> None:
        """Appends one."""
        self._places[instruction.name] = len(self.instructions)
        self.instructions.append(instruction)

    def __getitem__(self, name: str) -> Instruction:
        return self.instructions[self._places[name]]

    def place(self, name: str) -> int:
        """When an instruction runs."""
        return self._places[name]

    def shape(self, name: str) -> list[Shape]:
        """The arrays that an instruction makes."""
        return shapes(self[name].shape)

    @property
    def root(self) -> Instruction:
        """What it returns."""
        return next(one for one in reversed(self.instructions) if one.root)

    def constant(self, name: str) -> int | None:
        """The integer that an instruction is, through copies; None if it is not known here."""
        while name in self._places:
            one = self[name]
            if one.opcode == "constant":
                return int(one.argument) if re.fullmatch(r"-?\d+", one.argument) else None
            if one.opcode not in _PASS_ON or not one.operands:
                return None
            name = one.operands[0]
        return None

    def element(self, name: str) -> int | None:
        """Which element of the computation's parameter an instruction is, through copies."""
        while name in self._places:
            one = self[name]
            if one.opcode == "get-tuple-element" and self[one.operands[0]].opcode == "parameter":
                return int(re.search(r"index=(\d+)", one.attributes)[1])
            if one.opcode not in _PASS_ON or not one.operands:
                return None
            name = one.operands[0]
        return None


class Program:
    """A module's computations by name, and where it starts.

    Args:
        text: as compiled.
        known: of the program.
    """

    def __init__(self, text: str, known: Known = Known()):  # noqa: B008  (immutable)
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self._known = known
        current = None
        for line in text.splitlines():
            if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
                current = Computation(re.search(r"%([\w.\-]+)", line)[1])
                self.computations[current.name] = current
                self.entry = current.name if line.startswith("ENTRY") else self.entry
            elif current is not None and (found := _LINE.match(line)):
                name, shape, opcode, argument, attributes = found.groups()
                operands = tuple(re.findall(r"%([\w.\-]+)", argument))
                root = line.lstrip().startswith("ROOT")
                current.add(Instruction(name, shape, opcode, operands, argument, attributes, root))

    def __getitem__(self, name: str) -> Computation:
        return self.computations[name]

    def called(self, holder: Computation, one: Instruction) -> Iterator[tuple[Computation, float | None]]:
        """Computations that an instruction runs, and how often, None if that is not known.

        Of a conditional the branch with the most FLOPs. What a reduction applies to its elements is left out.
        """
        if one.opcode == "while":
            yield self[one.attribute("body")], self.trips(holder, one)
        elif one.opcode == "conditional":
            branches = (self[name] for name in one.branches)
            share = self._share(holder) if one.attributes.count("while/body") == 1 else 1
            yield max(branches, key=lambda branch: (self.flops(branch.name), len(branch.instructions))), share
        elif one.opcode in ("fusion", "call", "async-start", "call-start"):
            name = one.attribute("calls") or one.attribute("to_apply")
            if name:
                yield self[name], 1

    def _share(self, body: Computation) -> float:
        """Of a loop's runs, how many take a conditional's branch."""
        for holder in self.computations.values():
            for one in holder.instructions:
                if one.opcode == "while" and one.attribute("body") == body.name:
                    return self._known.taken.get(self.trips(holder, one), 1)
        return 1

    def trips(self, holder: Computation, loop: Instruction) -> int | None:
        """How often a loop runs: as the compiler noted, or from a counter that is compared with a constant."""
        noted = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if noted:
            return int(noted[1])
        condition, body = self[loop.attribute("condition")], self[loop.attribute("body")]
        test = condition.root
        if test.opcode != "compare" or "direction=LT" not in test.attributes:
            return None
        counter = condition.element(test.operands[0])
        bound = condition.constant(test.operands[1])
        if bound is None:
            bound = _initial(holder, loop, condition.element(test.operands[1]))
        if counter is None or bound is None:
            return None
        start, step = _initial(holder, loop, counter) or 0, 1
        update = body[body.root.operands[counter]] if body.root.opcode == "tuple" else None
        if update is not None and update.opcode == "add":
            step = body.constant(update.operands[1]) or 1
        return max(0, -(-(bound - start) // step))

    def flops(self, name: str) -> int:
        """Of one run of a computation and everything it calls."""
        return self._costs(name)[-1]

    @functools.cache  # noqa: B019  (a program lives as long as the command)
    def _costs(self, name: str) -> tuple[int, ...]:
        """FLOPs that were done before each instruction, and at the end."""
        total, before = 0, []
        for one in self[name].instructions:
            before.append(total)
            total += self._own_flops(self[name], one)
            for inner, times in self.called(self[name], one):
                total += int((1 if times is None else times) * self.flops(inner.name))
        return (*before, total)

    def flops_between(self, computation: Computation, first: str, last: str) -> int:
        """What runs after one instruction has begun and before another."""
        costs = self._costs(computation.name)
        return costs[computation.place(last)] - costs[computation.place(first) + 1]

    def _own_flops(self, computation: Computation, one: Instruction) -> int:
        if one.opcode == "convolution":
            return convolution_flops(computation, one)
        if one.opcode == "dot":
            return _dot_flops(computation, one)
        if one.opcode == "custom-call":
            found = re.search(r'"cost_estimate":(\{[^}]*\})', one.attributes)
            return int(self._known.of_kernel(one.name, int(json.loads(found[1])["flops"]))) if found else 0
        return 0


def _initial(holder: Computation, loop: Instruction, element: int | None) -> int | None:
    """What an element of a loop's state is at first, if it is a constant."""
    state = holder[loop.operands[0]]
    if element is None or state.opcode != "tuple":
        return None
    return holder.constant(state.operands[element])


def _dot_flops(computation: Computation, one: Instruction) -> int:
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
    left = computation.shape(one.operands[0])[0].sides
    depth = math.prod(left[int(axis)] for axis in contracted[1].split(",") if axis) if contracted else 1
    return 2 * math.prod(shapes(one.shape)[0].sides) * depth


def convolution_flops(computation: Computation, one: Instruction) -> int:
    """Of a convolution; batches of products are written as windows that dilation leaves one term in.

    Each output takes, along every window dimension, the taps that meet an element and not padding or a gap between
    dilated ones, and along the kernel's input features all of them.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    left, kernel = (computation.shape(name)[0].sides for name in one.operands[:2])
    out = shapes(one.shape)[0].sides
    found = re.search(r"window=\{([^}]*)\}", one.attributes)
    window = dict(field.split("=") for field in found[1].split()) if found else {}
    terms = 1
    for number in range(len(out) - 2):
        label = str(number)
        span = left[labels[1].index(label)]
        terms *= _window_terms(window, number, span, kernel[labels[2].index(label)], out[labels[3].index(label)])
    plain = out[labels[3].index("b")] * out[labels[3].index("f")] * kernel[labels[2].index("i")]
    groups = re.search(r"batch_group_count=(\d+)", one.attributes)
    return 2 * plain * terms // (int(groups[1]) if groups else 1)


def _window_terms(window: dict[str, str], number: int, span: int, taps: int, outputs: int) -> int:
    """Pairs of an output and a tap along one window dimension that meet an element of the input."""

    def of(key: str, default: str) -> str:
        return window[key].split("x")[number] if key in window else default

    stride, dilation, gap = int(of("stride", "1")), int(of("rhs_dilate", "1")), int(of("lhs_dilate", "1"))
    low = int(of("pad", "0_0").split("_")[0])
    start = np.arange(outputs, dtype=np.int64) * stride - low
    width = (span - 1) * gap + 1
    total = 0
    for tap in range(taps):
        at = start + tap * dilation
        total += int(((at >= 0) & (at < width) & (at % gap == 0)).sum())
    return total
