"""Several processes as one run: one on each host, or several on one for tests.

Process 0 holds jax's coordination service. Through it the others learn within about HEARTBEAT_SECONDS that one of them
is gone, and every process then ends with the same line and the same exit code. A process that is alone passes through
here without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path
import signal
import time
import traceback
from typing import Any

from k2jax.errors import UserError
from k2jax.processes.group import PAUSE_SECONDS, Group
from k2jax.processes.meeting import ProcessLostError, meet

HEARTBEAT_SECONDS = 20
"""Silence after which a process counts as dead. jax sends heartbeats from C++, so neither a long compilation nor the
interpreter's lock delays them; during jax's own 100 s a pod would stand idle."""
START_SECONDS = 300.0
"""How long processes wait for each other at the start; hosts boot and pull images at their own pace."""
_SHUTDOWN_SECONDS = 20
_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_GKE = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")

_group: Group | None = None


def start(seconds: float = START_SECONDS) -> None:
    """Joins the other processes of the run where there are any; to be called before jax is used.

    They are named by JAX_COORDINATOR_ADDRESS (HOST:PORT of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID on any
    platform; on Cloud TPU and GKE jax finds them by itself.

    Args:
        seconds: how long to wait for the others [s].

    Raises:
        UserError: some of the variables are set and others not, or they make no sense.
        ProcessLostError: not all came in time; it names those that did not, except where jax itself looks for them.
    """
    global _group
    named = _from_environment()
    if named is None and not _on_cloud_tpu():
        return
    import jax
    from jax._src import distributed  # the client has no public name

    if named is not None:
        meet(*named, seconds=seconds)
    # Else jax aborts every process when one dies, without saying which.
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        *(named or ()),
        initialization_timeout=int(seconds),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
    state = distributed.global_state
    if state.num_processes > 1:
        _group = Group(state.client, state.process_id, state.num_processes, state.coordinator_address)


def index() -> int:
    """Number of this process; 0 where it is alone."""
    return _group.index if _group else 0


def count() -> int:
    """How many processes the run has."""
    return _group.count if _group else 1


def first() -> bool:
    """Whether this is the process that speaks and writes for all."""
    return index() == 0


def barrier(name: str, seconds: float | None = START_SECONDS) -> None:
    """Returns when every process has come here; ``name`` is used once in a run.

    Args:
        name: of the place.
        seconds: how long to wait for the others [s]; None is for as long as they live.

    Raises:
        ProcessLostError: some did not come within ``seconds``; it names them.
    """
    if _group:
        _group.barrier(name, seconds)


def of_first(name: str, text: str) -> str:
    """Process 0's ``text``, in every process; ``name`` is used once in a run."""
    return _group.of_first(name, text) if _group else text


def report_position(position: Callable[[], tuple[int | None, int | None]]) -> None:
    """Sets what is said when a process is lost: the step being computed, and the newest that is saved."""
    if _group:
        _group.position = position


def asked_to_stop(step: int) -> bool:
    """Whether some process got SIGTERM, and ``step`` is the one after which all stop; to be called after every step.

    jax's preemption service hears SIGTERM in every process and picks one step that none of them has passed. Always
    False where there is one process only, which can see to its signals itself.
    """
    if _group is None:
        return False
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def interrupt_terminates() -> Iterator[None]:
    """Makes Ctrl-C count as SIGTERM, so that every process hears of it; a second one is not caught."""

    def forward(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, old)
        os.kill(os.getpid(), signal.SIGTERM)

    old = signal.signal(signal.SIGINT, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def together(body: Callable[[], int]) -> int:
    """Runs ``body`` in every process, and ends them all with one exit code.

    Where there are several it does not return: each process ends here, when the others have come as far, or as soon as
    one of them failed. An error in a collective is what the death of another process looks like; so before a process
    blames itself it waits until it would have heard of one.

    Args:
        body: its result is the exit code.

    Returns:
        The exit code, where there is one process only.
    """
    if _group is None:
        return body()
    try:
        _group.leave(body())
    except UserError as error:
        _group.stop(str(error), 2, of=_group.index)
    except ProcessLostError as error:
        _group.stop(str(error), 1)
    except BaseException as error:
        if isinstance(error, Exception):
            time.sleep(1.5 * HEARTBEAT_SECONDS + PAUSE_SECONDS)
        traceback.print_exc()
        _group.stop(" ".join(f"{type(error).__name__}: {error}".split())[:300], 1, of=_group.index)


def _from_environment() -> tuple[str, int, int] | None:
    given = [name for name in _VARIABLES if os.environ.get(name)]
    missing = [name for name in _VARIABLES if name not in given]
    if not given:
        return None
    if missing:
        raise UserError(f"{' and '.join(given)} without {' and '.join(missing)}: several processes need all three set")
    address, *numbers = (os.environ[name] for name in _VARIABLES)
    if not all(number.isdecimal() for number in numbers):
        raise UserError(f"JAX_NUM_PROCESSES {numbers[0]!r} and JAX_PROCESS_ID {numbers[1]!r} must be numbers")
    total, own = map(int, numbers)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"JAX_COORDINATOR_ADDRESS {address!r} must be HOST:PORT of process 0")
    if own >= total:
        raise UserError(f"JAX_PROCESS_ID {own} must be below JAX_NUM_PROCESSES {total}: processes count from 0")
    return address, total, own


def _on_cloud_tpu() -> bool:
    """Whether jax can find other hosts by itself. It looks at this machine alone: nothing here waits for a network.

    GKE tells by variables. On a Cloud TPU VM jax asks Google's metadata server, which only Google's machines have.
    """
    if "tpu" not in os.environ.get("JAX_PLATFORMS", ""):
        return False
    hosts = next((os.environ[name] for name in _GKE if os.environ.get(name)), None)
    if hosts is not None:
        return "," in hosts or int(os.environ.get("MEGASCALE_NUM_SLICES") or 1) > 1
    maker = Path("/sys/class/dmi/id/product_name")
    return "TPU_SKIP_MDS_QUERY" not in os.environ and maker.exists() and maker.read_text().startswith("Google")
