"""Abstract devices of a TPU topology, for compiling ahead of time with libtpu on a machine without a TPU."""

from __future__ import annotations

from importlib.util import find_spec
import os
import re
from typing import Any

from k2jax.chips import CHIPS, Chip
from k2jax.errors import UserError, nearest


def chip_of(topology: str) -> Chip:
    """The chip of a topology such as ``v5p:8x8x16``.

    Raises:
        UserError: the table of chips has no such generation.
    """
    name = topology.partition(":")[0]
    if name not in CHIPS:
        raise UserError(f"no TPU generation {name!r} in topology {topology!r}{nearest(name, list(CHIPS))}")
    return CHIPS[name]


def prepare() -> None:
    """Sets the environment in which libtpu compiles on a machine without a TPU; call it before jax starts."""
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",  # this machine has no metadata server
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # several processes may compile at a time
        # Without these libtpu searches for a TPU host and warns; the topology's name overrides both.
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
    )


def devices(topology: str) -> list[Any]:
    """Abstract devices of a topology such as ``v5e:2x2`` or ``v5p:8x8x16``.

    Raises:
        UserError: libtpu is not installed, or it knows no such topology.
    """
    chip_of(topology)
    if find_spec("libtpu") is None:
        raise UserError('compiling for a TPU needs libtpu: pip install "k2jax[tpu]" (Linux x86-64)')
    if not re.fullmatch(r"\w+:\d+x\d+(x\d+)?", topology):
        raise UserError(f"a topology is a generation and its sides, such as v5e:2x2 or v5p:2x2x1, not {topology!r}")
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except Exception as error:  # libtpu's own, of several classes
        raise UserError(f"libtpu has no topology {topology!r}: {str(error).splitlines()[0]}") from error
