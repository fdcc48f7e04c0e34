"""A compiled program's text as computations and instructions; loops know how often they run.

XLA prints scheduled computations in the order in which they run, so an instruction's position is its time. FLOPs are
counted here too: those of products, which XLA:TPU writes as convolutions, and those that Pallas kernels declare.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import json
import math
import re
from typing import NamedTuple

import numpy as np

from k2jax.aot.cost.jaxpr_flops import DynamicShares

_LINE = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\(([^)]*)\)?(.*)")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_PASS_ON = ("copy", "copy-start", "copy-done", "bitcast", "convert")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation: name, result shape, opcode, operands, and arguments and attributes as printed."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    argument: str
    attributes: str
    root: bool

    def attribute(self, key: str) -> str:
        """A called computation's name: ``body`` of ``body=%region_1``; empty where there is none."""
        match = re.search(rf"\b{key}=%([\w.\-]+)", self.attributes)
        return match[1] if match else ""

    @property
    def branches(self) -> list[str]:
        """Computations of a conditional."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        names = re.findall(r"%([\w.\-]+)", listed[1]) if listed else []
        return names or [name for key in ("true", "false") if (name := self.attribute(f"{key}_computation"))]


class Shape(NamedTuple):
    """An array: its type as XLA writes it, ``bf16`` for instance, and its dimensions."""

    dtype: str
    sides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
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
        """Appends an instruction."""
        self._places[instruction.name] = len(self.instructions)
        self.instructions.append(instruction)

    def __getitem__(self, name: str) -> Instruction:
        return self.instructions[self._places[name]]

    def place(self, name: str) -> int:
        """Position of an instruction in the order of execution."""
        return self._places[name]

    def shape(self, name: str) -> list[Shape]:
        """The arrays that an instruction returns."""
        return shapes(self[name].shape)

    @property
    def root(self) -> Instruction:
        """The instruction whose result the computation returns."""
        return next(instruction for instruction in reversed(self.instructions) if instruction.root)

    def constant(self, name: str) -> int | None:
        """The constant integer that an instruction copies; None if it is no constant."""
        while name in self._places:
            instruction = self[name]
            if instruction.opcode == "constant":
                return int(instruction.argument) if re.fullmatch(r"-?\d+", instruction.argument) else None
            if instruction.opcode not in _PASS_ON or not instruction.operands:
                return None
            name = instruction.operands[0]
        return None

    def element(self, name: str) -> int | None:
        """Index of the element of the computation's parameter that an instruction copies; None if it copies none."""
        while name in self._places:
            instruction = self[name]
            if instruction.opcode == "get-tuple-element" and self[instruction.operands[0]].opcode == "parameter":
                return int(re.search(r"index=(\d+)", instruction.attributes)[1])
            if instruction.opcode not in _PASS_ON or not instruction.operands:
                return None
            name = instruction.operands[0]
        return None


class HloModule:
    """A compiled module: computations by name, and the name of the entry.

    Args:
        text: of the compiled program.
        shares: what the text does not say of its branches and of the experts' rows.
    """

    def __init__(self, text: str, shares: DynamicShares = DynamicShares()):  # noqa: B008  (immutable)
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self._shares = shares
        current = None
        for line in text.splitlines():
            if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
                current = Computation(re.search(r"%([\w.\-]+)", line)[1])
                self.computations[current.name] = current
                self.entry = current.name if line.startswith("ENTRY") else self.entry
            elif current is not None and (match := _LINE.match(line)):
                name, shape, opcode, argument, attributes = match.groups()
                operands = tuple(re.findall(r"%([\w.\-]+)", argument))
                root = line.lstrip().startswith("ROOT")
                current.add(
                    Instruction(
                        name=name,
                        shape=shape,
                        opcode=opcode,
                        operands=operands,
                        argument=argument,
                        attributes=attributes,
                        root=root,
                    )
                )

    def __getitem__(self, name: str) -> Computation:
        return self.computations[name]

    def called(self, holder: Computation, instruction: Instruction) -> Iterator[tuple[Computation, float | None]]:
        """Computations that an instruction runs, and how often; None where that is data.

        Of a conditional, the branch with the most FLOPs. What a reduction applies to its elements is left out.
        """
        if instruction.opcode == "while":
            yield self[instruction.attribute("body")], self.trips(holder, instruction)
        elif instruction.opcode == "conditional":
            branches = (self[name] for name in instruction.branches)
            share = self._share(holder) if instruction.attributes.count("while/body") == 1 else 1
            yield max(branches, key=lambda branch: (self.flops(branch.name), len(branch.instructions))), share
        elif instruction.opcode in ("fusion", "call", "async-start", "call-start"):
            name = instruction.attribute("calls") or instruction.attribute("to_apply")
            if name:
                yield self[name], 1

    def _share(self, body: Computation) -> float:
        """Share of a loop's runs that take a conditional's branch."""
        for holder in self.computations.values():
            for instruction in holder.instructions:
                if instruction.opcode == "while" and instruction.attribute("body") == body.name:
                    return self._shares.taken.get(self.trips(holder, instruction), 1)
        return 1

    def trips(self, holder: Computation, loop: Instruction) -> int | None:
        """Runs of a loop: as the compiler noted, or from a counter that is compared with a constant."""
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
        """FLOPs of one run of a computation and everything it calls."""
        return self._costs(name)[-1]

    @functools.cache  # noqa: B019  (a program lives as long as the command)
    def _costs(self, name: str) -> tuple[int, ...]:
        """FLOPs before each instruction, and at the end."""
        total, before = 0, []
        for instruction in self[name].instructions:
            before.append(total)
            total += self._own_flops(self[name], instruction)
            for inner, times in self.called(self[name], instruction):
                total += int((1 if times is None else times) * self.flops(inner.name))
        return (*before, total)

    def flops_between(self, computation: Computation, first: str, last: str) -> int:
        """FLOPs after the first instruction has started and before the last one."""
        costs = self._costs(computation.name)
        return costs[computation.place(last)] - costs[computation.place(first) + 1]

    def _own_flops(self, computation: Computation, instruction: Instruction) -> int:
        if instruction.opcode == "convolution":
            return convolution_flops(computation, instruction)
        if instruction.opcode == "dot":
            return _dot_flops(computation, instruction)
        if instruction.opcode == "custom-call":
            match = re.search(r'"cost_estimate":(\{[^}]*\})', instruction.attributes)
            return int(self._shares.kernel_flops(instruction.name, int(json.loads(match[1])["flops"]))) if match else 0
        return 0


def _initial(holder: Computation, loop: Instruction, element: int | None) -> int | None:
    """Initial value of an element of a loop's state, if it is a constant."""
    state = holder[loop.operands[0]]
    if element is None or state.opcode != "tuple":
        return None
    return holder.constant(state.operands[element])


def _dot_flops(computation: Computation, instruction: Instruction) -> int:
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    left = computation.shape(instruction.operands[0])[0].sides
    depth = math.prod(left[int(axis)] for axis in contracted[1].split(",") if axis) if contracted else 1
    return 2 * math.prod(shapes(instruction.shape)[0].sides) * depth


def convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """FLOPs of a convolution; XLA writes batches of products as windows of which dilation leaves one term.

    Each output takes, along every window dimension, the taps that meet an element and not padding or a gap between
    dilated ones, and along the kernel's input features all of them.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    left, kernel = (computation.shape(name)[0].sides for name in instruction.operands[:2])
    out = shapes(instruction.shape)[0].sides
    match = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    window = dict(field.split("=") for field in match[1].split()) if match else {}
    terms = 1
    for number in range(len(out) - 2):
        label = str(number)
        span = left[labels[1].index(label)]
        terms *= _window_terms(window, number, span, kernel[labels[2].index(label)], out[labels[3].index(label)])
    plain = out[labels[3].index("b")] * out[labels[3].index("f")] * kernel[labels[2].index("i")]
    groups = re.search(r"batch_group_count=(\d+)", instruction.attributes)
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
