"""Connects the processes of a run, which environment variables or Cloud TPU name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from k2jax.errors import UserError
from k2jax.processes.group import Group
from k2jax.processes.membership import join
from k2jax.processes.rendezvous import rendezvous

HEARTBEAT_SECONDS = 20
"""Silence after which a process counts as lost. jax sends heartbeats from C++, so neither a long compilation nor the
interpreter's lock delays them. During jax's default of 100 s a pod would be idle."""
START_SECONDS = 300.0
"""How long processes wait for each other at the start; hosts boot and pull images at different speeds."""
_SHUTDOWN_SECONDS = 20
_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_GKE_HOST_LISTS = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")


class _Coordinates(NamedTuple):
    """The run as environment variables describe it: HOST:PORT of process 0, processes, and this process' index."""

    address: str
    count: int
    index: int


def start(seconds: float = START_SECONDS, name: str = "the run") -> None:
    """Connects this process with the others of its run, if there are any; call it before jax is used.

    JAX_COORDINATOR_ADDRESS (HOST:PORT of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID describe the run on any
    platform. On Cloud TPU and GKE jax detects the processes itself.

    Args:
        seconds: how long to wait for the other processes [s].
        name: what the processes are together, for messages.

    Raises:
        UserError: only some of the variables are set, or a value is invalid.
        ProcessLostError: some processes did not start in time. The message names them, unless jax detected them.
    """
    coordinates = _read_environment()
    if coordinates is None and not _jax_detects_processes():
        return
    import jax
    from jax._src import distributed  # the coordination service's client has no public name

    if coordinates is not None:
        rendezvous(*coordinates, seconds=seconds)
    # Without this option jax aborts every process when one is lost, and does not say which.
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        *(coordinates or ()),
        initialization_timeout=int(seconds),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
    state = distributed.global_state
    if state.num_processes > 1:
        join(Group(state.client, state.process_id, state.num_processes, state.coordinator_address, name))


def _read_environment() -> _Coordinates | None:
    present = [name for name in _VARIABLES if os.environ.get(name)]
    missing = [name for name in _VARIABLES if name not in present]
    if not present:
        return None
    if missing:
        raise UserError(
            f"{' and '.join(present)} without {' and '.join(missing)}: several processes need all three set"
        )
    address, *numbers = (os.environ[name] for name in _VARIABLES)
    if not all(number.isdecimal() for number in numbers):
        raise UserError(f"JAX_NUM_PROCESSES {numbers[0]!r} and JAX_PROCESS_ID {numbers[1]!r} must be numbers")
    count, index = map(int, numbers)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"JAX_COORDINATOR_ADDRESS {address!r} must be HOST:PORT of process 0")
    if index >= count:
        raise UserError(f"JAX_PROCESS_ID {index} must be below JAX_NUM_PROCESSES {count}: processes count from 0")
    return _Coordinates(address, count, index)


def _jax_detects_processes() -> bool:
    """Whether jax can detect other hosts itself, decided without a network request.

    GKE sets environment variables. On a Cloud TPU VM jax asks the metadata server, which only Google's machines have.
    """
    if "tpu" not in os.environ.get("JAX_PLATFORMS", ""):
        return False
    hosts = next((os.environ[name] for name in _GKE_HOST_LISTS if os.environ.get(name)), None)
    if hosts is not None:
        return "," in hosts or int(os.environ.get("MEGASCALE_NUM_SLICES") or 1) > 1
    vendor = Path("/sys/class/dmi/id/product_name")
    return "TPU_SKIP_MDS_QUERY" not in os.environ and vendor.exists() and vendor.read_text().startswith("Google")
