"""Trajectories of agents as token trees: what was sampled, what was observed, and what it was worth. NumPy alone.

In reading order: ``types`` (the tree), ``budget`` and ``steps`` (how much of it), ``swarm`` and ``links`` (what became
of sub-agents), ``answers`` (which nodes the model wrote), ``flat_rows`` (paths for training), ``encoding`` and
``store`` (files of trajectories), ``consistency`` (checks), ``filters``, ``pass_rates`` (difficulty of tasks),
``annotations``, ``formats`` and ``atif`` (exports).
"""

from k2jax.trajectory.consistency import verify
from k2jax.trajectory.encoding import EncodingError
from k2jax.trajectory.filters import demonstrations, filter_named, register_filter
from k2jax.trajectory.flat_rows import TrajectoryRow
from k2jax.trajectory.formats import exported, format_named, format_rows, register_format, write_jsonl
from k2jax.trajectory.store import TrajectoryStore, read_trajectories
from k2jax.trajectory.types import Node, Reward, Trajectory

__all__ = [
    "EncodingError",
    "Node",
    "Reward",
    "Trajectory",
    "TrajectoryRow",
    "TrajectoryStore",
    "demonstrations",
    "exported",
    "filter_named",
    "format_named",
    "format_rows",
    "read_trajectories",
    "register_filter",
    "register_format",
    "verify",
    "write_jsonl",
]
