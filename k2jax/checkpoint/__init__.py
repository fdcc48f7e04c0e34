"""Saving and restoring training state with orbax."""

from k2jax.checkpoint.manager import FORMAT, Checkpoints, load_params, run_config, run_folder

__all__ = ["FORMAT", "Checkpoints", "load_params", "run_config", "run_folder"]
