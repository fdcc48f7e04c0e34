"""This process as a member of its run: its index, barriers, text that process 0 shares, and preemption."""

from __future__ import annotations

from collections.abc import Callable

from k2jax.processes.group import Group

BARRIER_SECONDS = 300.0
"""Default limit of a barrier [s]."""

_group: Group | None = None


def join(group: Group) -> None:
    """Makes this process a member of ``group``; the functions of this module then refer to it."""
    global _group
    _group = group


def current_group() -> Group | None:
    """Returns the group of this process, or None if the run has one process."""
    return _group


def index() -> int:
    """Returns the index of this process, 0 to ``count() - 1``."""
    return _group.index if _group else 0


def count() -> int:
    """Returns the number of processes of the run."""
    return _group.count if _group else 1


def is_first() -> bool:
    """Returns whether this is process 0, which writes the run's output."""
    return index() == 0


def barrier(name: str, seconds: float | None = BARRIER_SECONDS) -> None:
    """Waits until every process has called it with this name.

    Args:
        name: identifies the barrier; each name is used once in a run.
        seconds: longest wait [s]; None waits as long as the other processes live.

    Raises:
        ProcessLostError: some processes did not reach the barrier within ``seconds``; the message names them.
    """
    if _group:
        _group.barrier(name, seconds)


def broadcast_from_first(name: str, text: str) -> str:
    """Returns process 0's ``text`` in every process; each ``name`` is used once in a run."""
    return _group.broadcast_from_first(name, text) if _group else text


def report_position(position: Callable[[], tuple[int | None, int | None]]) -> None:
    """Sets the steps that the message about a lost process mentions: the current step and the newest checkpoint's."""
    if _group:
        _group.position = position


def stop_requested(step: int) -> bool:
    """Returns whether all processes stop after ``step`` because one of them received SIGTERM.

    Every process must call it after every step: jax's preemption service picks one step that no process has passed.
    A run of one process handles its signals itself, and the result is always False.
    """
    if _group is None:
        return False
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)


def stop_asked() -> bool:
    """Returns whether a process of a run of several has received SIGTERM, of which all learn within about a second.

    Unlike ``stop_requested`` it may be called at any time, and processes may learn of it in different steps.
    """
    return _group is not None and _group.stop_asked
