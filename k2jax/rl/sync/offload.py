"""The training state rests in the host's memory while engines generate: its HBM goes to their caches.

The weights of frozen roles rest there while the policy trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from typing import Any, TypeVar

import jax
from jax.sharding import Sharding

from k2jax.inference.engine import Engine
from k2jax.train.run import Run

PINNED = "pinned_host"
Tree = TypeVar("Tree")


def has_host_memory(platform: str) -> bool:
    """Whether the host's memory is another one than the devices'; on a CPU there is nothing to move."""
    return platform != "cpu"


@contextlib.contextmanager
def offloaded(run: Run, frozen: Sequence[Engine] = ()) -> Iterator[None]:
    """Keeps a run's state in the host's memory for a ``with`` block, where ``rl.rollout.offload_state`` is set.

    Args:
        run: whose state.
        frozen: engines whose weights are on the devices in the block, and in the host's memory after it.
    """
    if not run.config.rl.rollout.offload_state:
        yield
        return
    run.state = to_host(run.state)
    for engine in frozen:
        engine.weights.move(to_devices)
    try:
        yield
    finally:
        for engine in frozen:
            engine.weights.move(to_host)
        run.state = to_devices(run.state)


def to_host(state: Tree) -> Tree:
    """Moves a tree of arrays to the host's memory and frees them on the devices.

    Args:
        state: on the devices, master weights and optimizer state for instance; its arrays are deleted. On a CPU it is
            returned as it is.

    Returns:
        The tree with the same shardings, in the memory kind ``pinned_host``.
    """
    return _moved(state, PINNED) if has_host_memory(_device(state).platform) else state


def to_devices(state: Tree) -> Tree:
    """Moves a tree that ``to_host`` moved back to the devices, and frees it on the host."""
    device = _device(state)
    return _moved(state, device.default_memory().kind) if has_host_memory(device.platform) else state


@contextlib.contextmanager
def on_devices(state: Tree) -> Iterator[Tree]:
    """A copy on the devices, for a ``with`` block, of a tree that rests in the host's memory and stays there."""
    device = _device(state)
    if not has_host_memory(device.platform):
        yield state
        return
    kind = device.default_memory().kind
    copies = jax.tree.map(lambda array: jax.device_put(array, array.sharding.with_memory_kind(kind)), state)
    try:
        yield copies
    finally:
        jax.tree.map(lambda copy: copy.delete(), copies)


def _moved(state: Tree, kind: str) -> Tree:
    """One array after the other, so that no more than one is in both memories."""

    def move(array: jax.Array) -> jax.Array:
        sharding: Sharding = array.sharding.with_memory_kind(kind)
        if array.sharding == sharding:
            return array
        moved = jax.block_until_ready(jax.device_put(array, sharding))
        array.delete()
        return moved

    return jax.tree.map(move, state)


def _device(state: Any) -> jax.Device:
    """Any device of a tree's arrays."""
    return next(iter(jax.tree.leaves(state)[0].sharding.device_set))
