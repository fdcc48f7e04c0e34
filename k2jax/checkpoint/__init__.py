"""Saving and restoring training state with orbax."""

from k2jax.checkpoint.manager import (
    Checkpoints,
    check_config,
    checkpoint_step,
    committed_steps,
    damaged,
    read_meta,
    run_config,
    run_folder,
)
from k2jax.checkpoint.meta import FORMAT

__all__ = [
    "FORMAT",
    "Checkpoints",
    "check_config",
    "checkpoint_step",
    "committed_steps",
    "damaged",
    "read_meta",
    "run_config",
    "run_folder",
]
