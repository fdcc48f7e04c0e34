"""Kernels compiled ahead of time for TPUs: what they take on the chip, and the least time the chip could need."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
import itertools
import multiprocessing
import os
import re
import time
from typing import NamedTuple

import jax

from k2jax.analysis.chips import chip_of
from k2jax.analysis.counts import count
from k2jax.analysis.kernel_cases import Case, cases
from k2jax.analysis.topology import devices

VMEM = 1  # the compiler's number of that memory
MOST_WORKERS = 8  # each takes up to 2 GB


class Compiled(NamedTuple):
    """One case on one topology; everything is of one device.

    Attributes:
        kernel, direction, shape: of the case.
        topology: such as ``v5e:2x2``.
        compile_seconds: of lowering and compiling, on this machine.
        vmem_bytes: on-chip memory of the hungriest kernel, as the compiler assigned it.
        vmem_limit_bytes: what one core has.
        temp_bytes: HBM beyond arguments and results.
        hbm_bytes: HBM with them.
        flops: of kernels and products.
        bytes: between HBM and them.
        roofline_seconds: the longer of arithmetic at peak and traffic at full bandwidth; a bound, not a time.
        bound: ``compute`` or ``memory``.
    """

    kernel: str
    direction: str
    shape: str
    topology: str
    compile_seconds: float
    vmem_bytes: int
    vmem_limit_bytes: int
    temp_bytes: int
    hbm_bytes: int
    flops: int
    bytes: int
    roofline_seconds: float
    bound: str

    @property
    def fits(self) -> bool:
        """Whether the chip has the memory on the core and off it."""
        chip = chip_of(self.topology)
        return self.vmem_bytes <= self.vmem_limit_bytes and self.hbm_bytes <= chip.hbm_bytes / chip.devices


def compile_all(topologies: list[str], only: str = "") -> Iterator[Compiled]:
    """Every case whose kernel's name contains ``only``, for every topology.

    Raises:
        UserError: a topology that is not known, or no libtpu.
    """
    for topology in topologies:
        devices(topology)  # refused here, not in a worker
    numbers = [number for number, case in enumerate(cases()) if only in case.kernel]
    work = list(itertools.product(numbers, topologies))
    workers = min(len(work), os.cpu_count() or 1, MOST_WORKERS)  # a compilation runs on one core
    if workers > 1:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(_compile_numbered, *zip(*work, strict=True))
    else:
        yield from itertools.starmap(_compile_numbered, work)


def _compile_numbered(number: int, topology: str) -> Compiled:
    return compile_case(cases()[number], topology)


def compile_case(case: Case, topology: str) -> Compiled:
    """Compiles one case and reads off what it takes."""
    began = time.perf_counter()
    function, arguments = case.build(devices(topology))
    traced = jax.jit(function).trace(*arguments)
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    seconds = time.perf_counter() - began
    counts = count(traced.jaxpr.jaxpr)
    chip, taken = chip_of(topology), compiled.memory_analysis()
    compute, memory = chip.seconds(counts.flops, counts.bytes)
    return Compiled(
        case.kernel,
        case.direction,
        case.shape,
        topology,
        seconds,
        vmem_bytes(compiled.as_text()),
        chip.vmem_bytes,
        taken.temp_size_in_bytes,
        taken.temp_size_in_bytes
        + taken.argument_size_in_bytes
        + taken.output_size_in_bytes
        - taken.alias_size_in_bytes,
        counts.flops,
        counts.bytes,
        max(compute, memory),
        "compute" if compute >= memory else "memory",
    )


def vmem_bytes(program: str) -> int:
    """On-chip memory of the hungriest Mosaic kernel of a compiled program's text.

    XLA may keep operands on the chip below the region that it gives to a kernel, whose end it then reports: they are
    not the kernel's. One that only copies between memories off the chip reports nothing.
    """
    sizes = []
    for line in program.splitlines():
        if 'custom_call_target="tpu_custom_call"' in line:
            used = _regions(line, "used_scoped_memory_configs")
            start = {space: offset for space, offset, _ in _regions(line, "scoped_memory_configs")}
            sizes += [offset + size - start.get(space, 0) for space, offset, size in used if space == VMEM]
    return max(sizes, default=0)


def _regions(line: str, key: str) -> list[tuple[int, int, int]]:
    """Space, offset and size of each region under a key."""
    listed = re.search(rf'"{key}":\[(.*?)\]', line)
    numbers = re.findall(r'"memory_space":"(\d+)","offset":"(\d+)","size":"(\d+)"', listed[1] if listed else "")
    return [tuple(map(int, region)) for region in numbers]
