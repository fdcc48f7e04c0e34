"""Every collective of a compiled program: its bytes, its devices, how often it runs, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import re

from k2jax.aot.hlo.module import Computation, HloModule, Instruction
from k2jax.aot.hlo.replica_groups import Groups, replica_groups

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "ragged-all-to-all",
    "all-to-all",
    "collective-permute",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective instruction on one device.

    Attributes:
        kind: one of ``KINDS``.
        dtype: of the array that travels.
        bytes: of the whole array: gathered for an all-gather, before it for a reduce-scatter; of a ragged exchange the
            smaller of the buffers that it reads and writes, not all of which travels.
        groups: devices, or (source, target) pairs.
        count: its runs in a step, on average where a condition decides.
        asynchronous: whether two instructions start and finish it.
        flops: of what is scheduled between them, in one run.
        scope: its named scope in JAX.
    """

    kind: str
    dtype: str
    bytes: int
    groups: Groups
    count: float
    asynchronous: bool
    flops: int
    scope: str


def collectives(program: HloModule, devices: int) -> tuple[list[Collective], int]:
    """Every collective, and the number of loops of unknown length, which are counted as one run.

    XLA:TPU starts some collectives in one fusion, continues them in others beside products, and finishes them in a
    last one; each of these repeats the instruction, and the first counts.
    """
    listed: list[Collective] = []
    unknown = 0
    waiting = [(program[program.entry], 1)]
    while waiting:
        computation, count = waiting.pop()
        for instruction in computation.instructions:
            listed += _read(program, computation, instruction, count, devices)
            for inner, times in program.called(computation, instruction):
                unknown += times is None
                if not _is_fused(instruction):
                    waiting.append((inner, count * (1 if times is None else times)))
    return listed, unknown


STARTS = ("async-start", "call-start")  # the second on a TPU7x, whose sparse cores run collectives


def _is_fused(instruction: Instruction) -> bool:
    return instruction.opcode in ("fusion", *STARTS)


def _read(
    program: HloModule, computation: Computation, instruction: Instruction, count: float, devices: int
) -> Iterator:
    if _is_fused(instruction):
        yield from _fused(program, computation, instruction, count, devices)
        return
    kind = instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        flops = _until(program, computation, instruction) if instruction.opcode != kind else None
        yield _collective(kind, computation, instruction, count, devices, flops)


def _fused(
    program: HloModule, computation: Computation, instruction: Instruction, count: float, devices: int
) -> Iterator:
    name = instruction.attribute("calls") or (
        instruction.attribute("to_apply") if instruction.opcode == "call-start" else ""
    )
    if not name:
        return
    inner = program[name]
    for part in inner.instructions:
        if part.opcode not in KINDS:
            continue
        kind, flops = part.opcode, None
        if "async_collective_fusion_config" in part.attributes:
            if not _has(inner, "AsyncCollectiveStart"):
                continue
            flops = _until_fused(program, computation, instruction, part)
        elif instruction.opcode in STARTS:
            flops = _until(program, computation, instruction)
        elif kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield _collective(kind, inner, part, count, devices, flops)


def _collective(
    kind: str, computation: Computation, instruction: Instruction, count: float, devices: int, flops: int | None
):
    groups = replica_groups(instruction.attributes, devices)
    operands = instruction.operands[:2] if kind == "ragged-all-to-all" else instruction.operands
    arrays = [shape for name in operands for shape in computation.shape(name)]
    sizes = [shape.bytes for shape in arrays]
    size = min(sizes) if kind == "ragged-all-to-all" else sum(sizes)
    if kind == "all-gather":
        size *= len(groups[0])
    scope = re.search(r'op_name="([^"]*)"', instruction.attributes)
    dtype = max(arrays, key=lambda shape: shape.bytes).dtype
    return Collective(
        kind=kind,
        dtype=dtype,
        bytes=size,
        groups=groups,
        count=count,
        asynchronous=flops is not None,
        flops=flops or 0,
        scope=scope[1] if scope else "",
    )


def _until(program: HloModule, computation: Computation, start: Instruction) -> int | None:
    """FLOPs between a start and the instruction that waits for it; None if it is in another computation."""
    names = {start.name}
    for instruction in computation.instructions[computation.place(start.name) + 1 :]:
        if names.intersection(instruction.operands):
            if instruction.opcode.endswith("-done"):
                return program.flops_between(computation, start.name, instruction.name)
            names.add(instruction.name)  # async-update, get-tuple-element
    return None


def _until_fused(program: HloModule, computation: Computation, start: Instruction, part: Instruction) -> int | None:
    """FLOPs between two fusions, of which the last repeats the instruction of the first."""
    channel = re.search(r"channel_id=\d+", part.attributes)
    for instruction in computation.instructions[computation.place(start.name) + 1 :]:
        inner = (
            program[instruction.attribute("calls")]
            if instruction.opcode == "fusion" and instruction.attribute("calls")
            else None
        )
        if inner is None or not _has(inner, "AsyncCollectiveDone"):
            continue
        same = [other for other in inner.instructions if other.opcode == part.opcode]
        if any(re.search(r"channel_id=\d+", other.attributes)[0] == channel[0] for other in same):
            return program.flops_between(computation, start.name, instruction.name)
    return None


def _has(computation: Computation, target: str) -> bool:
    return any(
        instruction.opcode == "custom-call" and f'"{target}"' in instruction.attributes
        for instruction in computation.instructions
    )
