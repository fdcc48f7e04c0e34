"""Trajectories of agents as token trees: what was sampled, what was observed, and what it was worth. NumPy alone."""

from k2jax.trajectory.types import Node, Reward, Trajectory

__all__ = ["Node", "Reward", "Trajectory"]
