"""Trajectories of agents as token trees: what was sampled, what was observed, and what it was worth. NumPy alone."""

from k2jax.trajectory.encoding import EncodingError
from k2jax.trajectory.store import TrajectoryStore, read_trajectories
from k2jax.trajectory.types import Node, Reward, Trajectory
from k2jax.trajectory.verify import verify

__all__ = ["EncodingError", "Node", "Reward", "Trajectory", "TrajectoryStore", "read_trajectories", "verify"]
