"""Kernels compiled ahead of time for TPUs: their on-chip memory, HBM and FLOPs, and a lower bound of their time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
import dataclasses
import itertools
import multiprocessing
import os
import re
import time

import jax

from k2jax.aot.cost.jaxpr_flops import traced_cost
from k2jax.aot.kernel_cases import KernelCase, cases
from k2jax.aot.topology import chip_of, devices

VMEM = 1  # the compiler's number of the on-chip memory
MAX_WORKERS = 8  # each takes up to 2 GB


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """One kernel on one topology; every number is of one device.

    Attributes:
        kernel, direction, shape: of the case.
        topology: such as ``v5e:2x2``.
        compile_seconds: of lowering and compiling on this machine.
        vmem_bytes: on-chip memory of the kernel that takes most, as the compiler assigned it.
        vmem_limit_bytes: on-chip memory of one core.
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
        """Whether the core has the on-chip memory and the device the HBM."""
        chip = chip_of(self.topology)
        return self.vmem_bytes <= self.vmem_limit_bytes and self.hbm_bytes <= chip.hbm_bytes / chip.devices


def compile_all(topologies: list[str], only: str = "") -> Iterator[CompiledKernel]:
    """Every case whose kernel's name contains ``only``, for every topology; see ``compile_cases``."""
    return compile_cases([number for number, case in enumerate(cases()) if only in case.kernel], topologies)


def compile_cases(numbers: list[int], topologies: list[str]) -> Iterator[CompiledKernel]:
    """Cases by their number in ``cases()``, for every topology, on all cores of this machine.

    Raises:
        UserError: an unknown topology, or no libtpu.
    """
    for topology in topologies:
        devices(topology)  # refused here, not in a worker
    work = list(itertools.product(numbers, topologies))
    workers = min(len(work), os.cpu_count() or 1, MAX_WORKERS)  # a compilation runs on one core
    if workers > 1:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(_compile_numbered, *zip(*work, strict=True))
    else:
        yield from itertools.starmap(_compile_numbered, work)


def _compile_numbered(number: int, topology: str) -> CompiledKernel:
    return compile_case(cases()[number], topology)


def compile_case(case: KernelCase, topology: str) -> CompiledKernel:
    """Compiles one case and reports what it takes."""
    began = time.perf_counter()
    function, arguments = case.build(devices(topology))
    traced = jax.jit(function).trace(*arguments)
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    seconds = time.perf_counter() - began
    cost = traced_cost(traced.jaxpr.jaxpr)
    chip, memory_use = chip_of(topology), compiled.memory_analysis()
    compute, memory = chip.seconds(cost.flops, cost.bytes)
    return CompiledKernel(
        kernel=case.kernel,
        direction=case.direction,
        shape=case.shape,
        topology=topology,
        compile_seconds=seconds,
        vmem_bytes=vmem_bytes(compiled.as_text()),
        vmem_limit_bytes=chip.vmem_bytes,
        temp_bytes=memory_use.temp_size_in_bytes,
        hbm_bytes=memory_use.temp_size_in_bytes
        + memory_use.argument_size_in_bytes
        + memory_use.output_size_in_bytes
        - memory_use.alias_size_in_bytes,
        flops=cost.flops,
        bytes=cost.bytes,
        roofline_seconds=max(compute, memory),
        bound="compute" if compute >= memory else "memory",
    )


def vmem_bytes(program: str) -> int:
    """On-chip memory of the Mosaic kernel that takes most, from a compiled program's text.

    XLA may keep operands on the chip below the region of a kernel, and reports where the region ends: the operands are
    not counted. A kernel that only copies between memories off the chip reports nothing.
    """
    sizes = []
    for line in program.splitlines():
        if 'custom_call_target="tpu_custom_call"' in line:
            used = _regions(line, "used_scoped_memory_configs")
            start = {space: offset for space, offset, _ in _regions(line, "scoped_memory_configs")}
            sizes += [offset + size - start.get(space, 0) for space, offset, size in used if space == VMEM]
    return max(sizes, default=0)


def _regions(line: str, key: str) -> list[tuple[int, int, int]]:
    """Memory space, offset and size of each region that is listed under a key."""
    listed = re.search(rf'"{key}":\[(.*?)\]', line)
    numbers = re.findall(r'"memory_space":"(\d+)","offset":"(\d+)","size":"(\d+)"', listed[1] if listed else "")
    return [tuple(map(int, region)) for region in numbers]
