"""A program that is compiled for a TPU: what every report of one holds."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

import jax

from k2jax.aot.cost.hbm import Hbm
from k2jax.aot.cost.roofline import Roofline
from k2jax.aot.hlo.measured_collectives import CollectiveTotal
from k2jax.pods.launch_spec import XLA_OPTIONS

# As k2jax.launch sets them: exchanges of tokens may run beside products.
COMPILER_OPTIONS = dict(option.removeprefix("--").split("=") for option in XLA_OPTIONS)


class DoesNotFit(Exception):
    """The program needs more HBM than there is; ``needs`` says how much, for people."""

    def __init__(self, needs: str):
        super().__init__(f"the program needs {needs}")
        self.needs = needs


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """A compiled program; everything but ``tokens`` is of one device.

    Attributes:
        topology: such as ``v5p:8x8x16``.
        mesh: axes and their sizes.
        tokens: of a step, over all devices.
        compile_seconds: of lowering and compiling on this machine.
        hbm: by what it holds.
        collectives: the longest first.
        roofline: the estimate.
        notes: warnings for the reader.
    """

    topology: str
    mesh: dict[str, int]
    tokens: int
    compile_seconds: float
    hbm: Hbm
    collectives: list[CollectiveTotal]
    roofline: Roofline
    notes: list[str]


def compile_for_tpu(traced: Any) -> tuple[Any, float]:
    """Compiles a ``jax.stages.Traced`` with the options of ``k2jax.launch``; returns it with the seconds that it took.

    Raises:
        DoesNotFit: the compiler found too little HBM.
    """
    began = time.perf_counter()
    try:
        compiled = traced.lower(lowering_platforms=("tpu",)).compile(compiler_options=COMPILER_OPTIONS)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(_needed(str(error))) from error
    return compiled, time.perf_counter() - began


def _needed(message: str) -> str:
    """The sizes in the compiler's message."""
    sizes = re.search(r"\(?([\d.]+[KMGT])\)? exceeds available HBM \(?([\d.]+[KMGT])", message)
    return f"{sizes[1]}iB of {sizes[2]}iB" if sizes else message.splitlines()[0]
