"""Several processes as one run: one on each host, or several on one host in tests.

Process 0 runs jax's coordination service. Through it every process learns within about HEARTBEAT_SECONDS that another
process is lost, and all processes then end with the same error line and the same exit code. In a run of one process
all functions here return at once. ``command_tree`` carries messages of process 0 to all others, as ``values`` over
``command_links``.
"""

from k2jax.processes.initialize import HEARTBEAT_SECONDS, START_SECONDS, start
from k2jax.processes.membership import (
    barrier,
    broadcast_from_first,
    count,
    index,
    is_first,
    report_position,
    stop_asked,
    stop_requested,
)
from k2jax.processes.rendezvous import ProcessLostError
from k2jax.processes.termination import end_on_signals, interrupt_terminates, run_and_exit

__all__ = [
    "HEARTBEAT_SECONDS",
    "START_SECONDS",
    "ProcessLostError",
    "barrier",
    "broadcast_from_first",
    "count",
    "end_on_signals",
    "index",
    "interrupt_terminates",
    "is_first",
    "report_position",
    "run_and_exit",
    "start",
    "stop_asked",
    "stop_requested",
]
