"""TPU slices by accelerator type (``v5p-2048``) or topology (``v5p:8x8x16``), and their names in Google's tools."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
import difflib
from functools import cache
from itertools import combinations_with_replacement
from math import prod
import re

from k2jax.errors import UserError


@dataclass(frozen=True)
class Generation:
    """A TPU generation as Google's tools name it.

    Attributes:
        name: its name in a topology, ``v5e:2x4``.
        prefix: its name in an accelerator type and in xpk, ``v5litepod-8``.
        cores: units per chip that the number of an accelerator type counts: TensorCores, or 1 if it counts chips.
        accelerator: value of the node label ``cloud.google.com/gke-tpu-accelerator``.
        runtime: software version of its VMs; None if the Cloud TPU API does not offer the generation.
        chips: number of chips of the largest slice.
        sides: dimensions of a topology, 2 or 3.
    """

    name: str
    _: KW_ONLY
    prefix: str
    cores: int
    accelerator: str
    runtime: str | None
    chips: int
    sides: int


# Sources: cloud.google.com/tpu/docs/{v5e,v5p,v6e,tpu7x,runtimes,queued-resources} and
# cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus; the largest tpu7x slice and the node labels as in
# system_characteristics.py of xpk 1.16.
GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation(
            "v5e",
            prefix="v5litepod",
            cores=1,
            accelerator="tpu-v5-lite-podslice",
            runtime="v2-alpha-tpuv5-lite",
            chips=256,
            sides=2,
        ),
        Generation(
            "v5p", prefix="v5p", cores=2, accelerator="tpu-v5p-slice", runtime="v2-alpha-tpuv5", chips=6144, sides=3
        ),
        Generation(
            "v6e", prefix="v6e", cores=1, accelerator="tpu-v6e-slice", runtime="v2-alpha-tpuv6e", chips=256, sides=2
        ),
        Generation("tpu7x", prefix="tpu7x", cores=2, accelerator="tpu7x", runtime=None, chips=9216, sides=3),
    )
}
SHAPES_2D = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
SMALL_SHAPES_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
CUBE_SIDE = 4
"""Sides of larger 3-D slices are multiples of it, in ascending order, up to LONGEST_SIDE."""
LONGEST_SIDE = 256


@dataclass(frozen=True)
class Slice:
    """Chips connected by their own interconnect, in a topology of one shape."""

    generation: Generation
    shape: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Number of chips."""
        return prod(self.shape)

    @property
    def topology(self) -> str:
        """Value of the node label ``cloud.google.com/gke-tpu-topology``: ``8x8x16``."""
        return "x".join(map(str, self.shape))

    @property
    def accelerator_type(self) -> str:
        """Name for the Cloud TPU API: ``v5p-2048``. It stands for the usual shape of its size."""
        return f"{self.generation.prefix}-{self.chips * self.generation.cores}"

    @property
    def has_usual_shape(self) -> bool:
        """Whether the slice has the shape that ``accelerator_type`` stands for."""
        return self.shape == _usual_shape(self.generation, self.chips)

    @property
    def vms(self) -> int:
        """Number of hosts on the Cloud TPU API, where 8 chips of a 2-D topology share one host."""
        return 1 if self.chips == 8 and self.generation.sides == 2 else self.nodes

    @property
    def nodes(self) -> int:
        """Number of hosts in node pools, whose machines have 4 chips (or one, for a slice of one chip)."""
        return max(1, self.chips // 4)

    @property
    def chips_per_node(self) -> int:
        """Chips that one pod requests as ``google.com/tpu``."""
        return min(4, self.chips)

    def __str__(self) -> str:
        return f"{self.generation.name}:{self.topology}"


def parse_slice(text: str, flag: str = "--tpu") -> Slice:
    """Returns the slice of an accelerator type (``v5litepod-8``, ``v5e-8``, ``v5p-2048``) or topology (``v5p:8x8x16``).

    ``flag`` is named where the text is neither.

    Raises:
        UserError: the generation, size or shape does not exist; the message names the nearest that do.
    """
    match = re.fullmatch(r"([a-z0-9]+)(?:-(\d+)|:(\d+(?:x\d+)+))", text)
    if match is None:
        raise UserError(f"{flag} {text!r} is neither a type such as v5p-2048 nor a topology such as v5p:8x8x16")
    generation = _generation(match[1], f"{flag} {text!r}")
    if match[2]:
        return _slice_of_size(generation, int(match[2]))
    return _slice_of_shape(generation, tuple(map(int, match[3].split("x"))))


def _generation(name: str, where: str) -> Generation:
    by_name = GENERATIONS | {generation.prefix: generation for generation in GENERATIONS.values()}
    if name not in by_name:
        close = difflib.get_close_matches(name, by_name, n=1, cutoff=0)
        raise UserError(f"no TPU generation {name!r} in {where}; did you mean {close[0]!r}?")
    return by_name[name]


def _slice_of_size(generation: Generation, number: int) -> Slice:
    shape = _usual_shape(generation, number // generation.cores) if number % generation.cores == 0 else None
    if shape is None:
        sizes = sorted({prod(s) * generation.cores for s in _shapes(generation)}, key=lambda n: (abs(n - number), n))
        near = " and ".join(f"{generation.prefix}-{n}" for n in sorted(sizes[:2]))
        counted = "chips" if generation.cores == 1 else f"TensorCores, {generation.cores} a chip"
        raise UserError(f"no slice {generation.prefix}-{number} (the number counts {counted}); the nearest are {near}")
    return Slice(generation, shape)


def _slice_of_shape(generation: Generation, shape: tuple[int, ...]) -> Slice:
    if shape not in _shapes(generation):
        requested = Slice(generation, shape)
        if tuple(sorted(shape)) in _shapes(generation):
            hint = f"sides ascend: {Slice(generation, tuple(sorted(shape)))}"
        else:
            nearest = min(_shapes(generation), key=lambda s: (abs(prod(s) - requested.chips), sum(s)))
            hint = f"{_shape_rule(generation)}; the nearest in size is {Slice(generation, nearest)}"
        raise UserError(f"no topology {requested}; {hint}")
    return Slice(generation, shape)


def _usual_shape(generation: Generation, chips: int) -> tuple[int, ...] | None:
    """The most compact shape of a size, which Google's tables list."""
    return min((s for s in _shapes(generation) if prod(s) == chips), key=sum, default=None)


@cache
def _shapes(generation: Generation) -> tuple[tuple[int, ...], ...]:
    if generation.sides == 2:
        return SHAPES_2D
    cubes = combinations_with_replacement(range(CUBE_SIDE, LONGEST_SIDE + 1, CUBE_SIDE), 3)
    return (*SMALL_SHAPES_3D, *(shape for shape in cubes if prod(shape) <= generation.chips))


def _shape_rule(generation: Generation) -> str:
    if generation.sides == 2:
        return f"{generation.name} has {', '.join('x'.join(map(str, s)) for s in SHAPES_2D)}"
    small = ", ".join("x".join(map(str, s)) for s in SMALL_SHAPES_3D)
    return f"{generation.name} has {small} and ascending multiples of {CUBE_SIDE} up to {generation.chips} chips"
