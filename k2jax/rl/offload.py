"""The training state rests in the host's memory while the engine generates: its HBM goes to the engine's cache."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

import jax
from jax.sharding import Sharding

from k2jax.train.run import Run
from k2jax.train.state import TrainState

PINNED = "pinned_host"


def has_host_memory(platform: str) -> bool:
    """Whether the host's memory is another one than the devices'; on a CPU there is nothing to move."""
    return platform != "cpu"


@contextlib.contextmanager
def at_rest(run: Run) -> Iterator[None]:
    """Keeps a run's state in the host's memory for a ``with`` block, where ``rl.rollout.offload_state`` is set."""
    if not run.config.rl.rollout.offload_state:
        yield
        return
    run.state = to_host(run.state)
    try:
        yield
    finally:
        run.state = to_devices(run.state)


def to_host(state: TrainState) -> TrainState:
    """Moves master weights and optimizer state to the host's memory and frees them on the devices.

    Args:
        state: on the devices; its arrays are deleted. On a CPU it is returned as it is.

    Returns:
        The state with the same shardings, in the memory kind ``pinned_host``.
    """
    return _moved(state, PINNED) if has_host_memory(_platform(state)) else state


def to_devices(state: TrainState) -> TrainState:
    """Moves a state that ``to_host`` moved back to the devices, and frees it on the host."""
    return _moved(state, _device_memory(state)) if has_host_memory(_platform(state)) else state


def _moved(state: TrainState, kind: str) -> TrainState:
    """One array after the other, so that no more than one is in both memories."""

    def move(array: jax.Array) -> jax.Array:
        sharding: Sharding = array.sharding.with_memory_kind(kind)
        if array.sharding == sharding:
            return array
        moved = jax.block_until_ready(jax.device_put(array, sharding))
        array.delete()
        return moved

    return jax.tree.map(move, state)


def _platform(state: TrainState) -> str:
    return next(iter(state.step.sharding.device_set)).platform


def _device_memory(state: TrainState) -> str:
    return next(iter(state.step.sharding.device_set)).default_memory().kind
