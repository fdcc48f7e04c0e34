"""The short list of shapes that programs have, so that a long-lived engine compiles a bounded number of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np

from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference.forward import cache_shape
from k2jax.inference.mesh import device_count
from k2jax.model.attention import attention_of
from pallas_kernels.implementation import resolve
from pallas_kernels.mla_decode import MAX_PAGES, PAGE_MULTIPLE

GROWTH = 4  # ratio of neighbouring numbers of rows and pages: padding against the number of programs
PREFILL_WIDTHS = (16, 64, 256)
PREFILL_TOKENS = 1024  # of one prefill program, rows times width: 64, 16 or 4 rows, all of which are sizes of rows

CPU_CACHE_BYTES = 1 << 30
"""Most bytes of a cache whose pages nobody has chosen, on a CPU: it shares its memory with everything else.
Sequences that find no page wait, or are computed anew later."""


class EngineSizes(NamedTuple):
    """Sizes of an engine over all its devices.

    Attributes:
        slots: sequences that run at a time.
        pages: of the cache.
        page_size: tokens in a page.
        max_length: longest sequence [tokens].
        devices: devices that have slots.
    """

    slots: int
    pages: int
    page_size: int
    max_length: int
    devices: int

    @property
    def longest(self) -> int:
        """Pages of a sequence of ``max_length``."""
        return -(-self.max_length // self.page_size)

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        dtype: Any,
        mesh: Mesh | None,
        *,
        slots: int,
        pages: int | None,
        page_size: int,
        max_length: int,
    ) -> EngineSizes:
        """Sizes of an engine that computes in a dtype; for pages of None see ``Engine``."""
        sizes = cls(slots, 0, page_size, max_length, device_count(mesh))
        if pages is None:
            pages = slots * sizes.longest
            if jax.default_backend() == "cpu":
                page = math.prod(cache_shape(model, 1, page_size)) * np.dtype(dtype).itemsize
                affordable = CPU_CACHE_BYTES // page // sizes.devices * sizes.devices
                pages = min(pages, max(affordable, sizes.longest * sizes.devices))
        return sizes._replace(pages=pages)

    def check(self, model: ModelConfig) -> None:
        """Raises UserError for invalid sizes, or sizes that do not divide over the devices."""
        least = min(self.slots, self.page_size, self.max_length)
        if least < 1 or self.pages < self.longest * self.devices:
            raise UserError(
                f"an engine needs slots, page_size and max_length above 0 and pages for one sequence of max_length "
                f"({self.longest}) on each of {self.devices} devices, not {self.slots}, {self.page_size}, "
                f"{self.max_length} and {self.pages}"
            )
        for name, number in (("slots", self.slots), ("pages", self.pages)):
            if number % self.devices:
                multiple = -(-number // self.devices) * self.devices
                raise UserError(f"{name} {number} do not divide over {self.devices} devices; {multiple} would")
        if resolve(model.kernels) != "xla" and attention_of(model).decode_kernel:
            self._check_kernel()

    def _check_kernel(self) -> None:
        """What the decode kernel requires of the pages."""
        slots = self.slots // self.devices
        if self.page_size % PAGE_MULTIPLE:
            raise UserError(
                f"the decode kernel needs a page_size that is a multiple of {PAGE_MULTIPLE}, not {self.page_size}"
            )
        if slots * self.longest > MAX_PAGES:
            tokens = slots * self.longest * self.page_size
            raise UserError(
                f"{slots} slots of {self.longest:,} pages are more than the {MAX_PAGES:,} that the decode kernel can "
                f"look up; choose a page_size of {-(-tokens // MAX_PAGES // PAGE_MULTIPLE) * PAGE_MULTIPLE}"
            )


def growing_sizes(smallest: int, largest: int, growth: int = GROWTH) -> list[int]:
    """Sizes from ``smallest`` to ``largest``, each ``growth`` times the one before."""
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * growth))
    return sizes


def context_sizes(longest: int, reads_all: bool) -> list[int]:
    """Numbers of pages that programs read, up to ``longest``.

    A fresh prompt reads none, which saves 3 % of the processor time of 16 prompts of 64 tokens of nano.

    Args:
        longest: pages of the longest sequence.
        reads_all: whether attention reads all of these pages, the unused ones too. Kernels read those in use. Of the
            processor time of a step for 16 sequences of nano, reading 16 pages instead of 8 takes a fifth.
    """
    return [0, *growing_sizes(min(4, longest), longest, 2 if reads_all else GROWTH)]


def at_least(sizes: list[int], needed: int) -> int:
    """The smallest of growing sizes that is enough."""
    return next(size for size in sizes if size >= needed)


def prefill_width(pending: int) -> int:
    """The width of the program that computes the next chunk of a prompt with ``pending`` ids left.

    Half a width or less is better split over several programs of the next smaller width.
    """
    fitting = [width for width in PREFILL_WIDTHS if pending > width // 2]
    return fitting[-1] if fitting else PREFILL_WIDTHS[0]
