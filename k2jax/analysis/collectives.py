"""Every collective of a compiled program: what it moves, between whom, how often, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
import re
from typing import NamedTuple

from k2jax.analysis.groups import Groups, groups_of
from k2jax.analysis.hlo import Computation, Instruction, Program

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "ragged-all-to-all",
    "all-to-all",
    "collective-permute",
)


class Collective(NamedTuple):
    """One collective instruction, on one device.

    Attributes:
        kind: one of ``KINDS``.
        dtype: of what travels.
        bytes: of the whole array: gathered for an all-gather, before it for a reduce-scatter; of a ragged exchange the
            smaller of the buffers that it reads and writes, not all of which travels.
        groups: devices, or (source, target) pairs.
        count: how often it runs in a step, on average where a condition decides.
        asynchronous: started and finished by two instructions.
        flops: of what is scheduled between them, in one run.
        scope: where it comes from in JAX.
    """

    kind: str
    dtype: str
    bytes: int
    groups: Groups
    count: float
    asynchronous: bool
    flops: int
    scope: str


def collectives(program: Program, devices: int) -> tuple[list[Collective], int]:
    """All of them, and how many loops of unknown length were taken to run once.

    XLA:TPU starts some collectives in one fusion, carries on in others beside products, and finishes in a last one;
    each of these repeats the instruction, and the first counts.
    """
    found: list[Collective] = []
    unknown = 0
    waiting = [(program[program.entry], 1)]
    while waiting:
        computation, count = waiting.pop()
        for one in computation.instructions:
            found += _read(program, computation, one, count, devices)
            for inner, times in program.called(computation, one):
                unknown += times is None
                if not _is_fused(one):
                    waiting.append((inner, count * (1 if times is None else times)))
    return found, unknown


STARTS = ("async-start", "call-start")  # the second on a TPU7x, whose sparse cores carry collectives out


def _is_fused(one: Instruction) -> bool:
    return one.opcode in ("fusion", *STARTS)


def _read(program: Program, computation: Computation, one: Instruction, count: float, devices: int) -> Iterator:
    if _is_fused(one):
        yield from _fused(program, computation, one, count, devices)
        return
    kind = one.opcode.removesuffix("-start")
    if kind in KINDS:
        flops = _until(program, computation, one) if one.opcode != kind else None
        yield _collective(kind, computation, one, count, devices, flops)


def _fused(program: Program, computation: Computation, one: Instruction, count: float, devices: int) -> Iterator:
    name = one.attribute("calls") or (one.attribute("to_apply") if one.opcode == "call-start" else "")
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
            flops = _until_fused(program, computation, one, part)
        elif one.opcode in STARTS:
            flops = _until(program, computation, one)
        elif kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield _collective(kind, inner, part, count, devices, flops)


def _collective(kind: str, computation: Computation, one: Instruction, count: float, devices: int, flops: int | None):
    groups = groups_of(one.attributes, devices)
    operands = one.operands[:2] if kind == "ragged-all-to-all" else one.operands
    arrays = [shape for name in operands for shape in computation.shape(name)]
    sizes = [shape.bytes for shape in arrays]
    size = min(sizes) if kind == "ragged-all-to-all" else sum(sizes)
    if kind == "all-gather":
        size *= len(groups[0])
    scope = re.search(r'op_name="([^"]*)"', one.attributes)
    dtype = max(arrays, key=lambda shape: shape.bytes).dtype
    return Collective(kind, dtype, size, groups, count, flops is not None, flops or 0, scope[1] if scope else "")


def _until(program: Program, computation: Computation, start: Instruction) -> int | None:
    """FLOPs between a start and the instruction that waits for it; None if that is elsewhere."""
    names = {start.name}
    for one in computation.instructions[computation.place(start.name) + 1 :]:
        if names.intersection(one.operands):
            if one.opcode.endswith("-done"):
                return program.flops_between(computation, start.name, one.name)
            names.add(one.name)  # async-update, get-tuple-element
    return None


def _until_fused(program: Program, computation: Computation, start: Instruction, part: Instruction) -> int | None:
    """The same where the last fusion repeats the instruction of the first."""
    channel = re.search(r"channel_id=\d+", part.attributes)
    for one in computation.instructions[computation.place(start.name) + 1 :]:
        inner = program[one.attribute("calls")] if one.opcode == "fusion" and one.attribute("calls") else None
        if inner is None or not _has(inner, "AsyncCollectiveDone"):
            continue
        same = [other for other in inner.instructions if other.opcode == part.opcode]
        if any(re.search(r"channel_id=\d+", other.attributes)[0] == channel[0] for other in same):
            return program.flops_between(computation, start.name, one.name)
    return None


def _has(computation: Computation, target: str) -> bool:
    return any(one.opcode == "custom-call" and f'"{target}"' in one.attributes for one in computation.instructions)
