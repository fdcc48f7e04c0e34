"""Devices of a TPU topology that is not here, for ahead-of-time compilation with libtpu."""

from __future__ import annotations

from importlib.util import find_spec
import os
import re
from typing import Any

from k2jax.analysis.chips import chip_of
from k2jax.errors import UserError


def prepare() -> None:
    """Settings under which libtpu compiles on a machine without a TPU, quietly; before jax starts."""
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",  # there is no metadata server to ask
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # several processes may compile at a time
        # What libtpu would otherwise search for and complain about; the topology's name overrules them.
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
