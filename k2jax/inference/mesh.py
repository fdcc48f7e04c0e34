"""An engine on several devices: experts over the axis ``expert``, everything else of a sequence on one device.

Each device has slots and pages of its own, along ``data`` and ``expert`` alike, and a copy of all weights but the
routed experts. The only communication of a decoding step is the exchange of tokens with the ranks of their experts:
MLA's cache is one latent for all heads, so sharding it by heads would copy it to every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

import jax
from jax import Array
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
import numpy as np

from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.model.feed_forward import Experts
from k2jax.parallel.torus import device_grid
from k2jax.sharding import param_shardings
from pallas_kernels.expert_exchange import expert_parallel

AXES = ("data", "expert")
ROWS = PartitionSpec(AXES)  # of a batch [rows, ...]
CACHE = PartitionSpec(None, AXES)  # [layers, pages, ...]
MAX_COPIES = 1 << 16
"""Most rows that a device's experts compute in one exchange. Each exchange has room for the worst case, in which every
token chooses this device, so that no row is ever dropped; longer chunks of prompts are exchanged in several parts."""


def make_engine_mesh(data: int = 1, expert: int = 1, devices: Sequence[Any] | None = None) -> Mesh | None:
    """The mesh of an engine; None for one device, the default one.

    Args:
        data: groups of devices, each with all experts.
        expert: devices that share the experts.
        devices: the first ``data * expert`` of them are used; by default ``jax.devices()``.

    Raises:
        UserError: there are fewer devices, or they belong to several slices that ``data`` does not divide over.
    """
    if data * expert == 1 and devices is None:
        return None
    devices = list(jax.devices() if devices is None else devices)
    if min(data, expert) < 1 or data * expert > len(devices):
        raise UserError(
            f"an engine on data {data} x expert {expert} devices: there are {len(devices)}; choose factors of as many"
        )
    grid = device_grid(devices[: data * expert], {"data": data, "expert": expert})
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def default_sharding() -> Sharding:
    """Sharding of arrays on the default device."""
    with jax.ensure_compile_time_eval():
        return jnp.zeros(()).sharding


def device_count(mesh: Mesh | None) -> int:
    """Number of devices that have slots."""
    return mesh.size if mesh else 1


def param_specs(params: Any, config: ModelConfig, mesh: Mesh) -> Any:
    """PartitionSpec of every weight, in a tree like ``params``: layers may be unstacked.

    Raises:
        UserError: experts that do not divide over the mesh.
    """
    stacked = jax.tree.map(lambda sharding: sharding.spec, param_shardings(model_specs(config), mesh))
    return {group: _unstacked(part, params[group]) for group, part in stacked.items()}


def _unstacked(specs: Any, params: Any) -> Any:
    if not isinstance(params, list):
        return specs
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    return [jax.tree.map(lambda spec: PartitionSpec(*spec[1:]), specs, is_leaf=is_spec)] * len(params)


def spread(array: Any, sharding: Sharding) -> Array:
    """A weight, which every process may hold whole, as one array over the devices of all processes.

    The result may share memory with what lies there already, as NumPy arrays may on a CPU.

    Args:
        array: of NumPy or JAX.
        sharding: where it goes.
    """
    if sharding.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
        return jax.device_put(array, sharding)
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def place(array: np.ndarray, spec: PartitionSpec, mesh: Mesh | None) -> Array | np.ndarray:
    """An array of the host on the devices; each process provides the shards of its own devices.

    Without a mesh it stays as it is: a program takes it to its device, in less time than a transfer of its own.
    """
    if mesh is None:
        return array
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])


def fetch(arrays: Any) -> Any:
    """All rows of arrays of one mesh as NumPy arrays, in every process; one program moves them between processes."""
    leaves = jax.tree.leaves(arrays)
    if not all(array.is_fully_addressable for array in leaves):
        arrays = _replicated(leaves[0].sharding.mesh)(arrays)
    return jax.tree.map(np.asarray, arrays)


@functools.cache
def _replicated(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda arrays: arrays, out_shardings=NamedSharding(mesh, PartitionSpec()))


def make_experts(config: ModelConfig, mesh: Mesh) -> Experts | None:
    """The routed experts over ``expert``; None where each device has all of them."""
    ranks = mesh.shape["expert"]
    if ranks == 1 or config.layers == config.dense_layers:
        return None

    def experts(x: Array, w13: Array, w2: Array, expert_ids: Array, gates: Array) -> tuple[Array, Array]:
        parts = exchanged_parts(config, x.shape[0], ranks)
        exchange = {"axis_name": "expert", "chunks": parts, "impl": config.kernels}
        return expert_parallel(x, w13, w2, expert_ids, gates, **exchange)

    return experts


def exchanged_parts(config: ModelConfig, tokens: int, ranks: int) -> int:
    """Number of exchanges that a device's tokens are split into, so that each has room for the worst case."""
    worst = tokens * ranks * min(config.moe.active_experts, config.moe.experts // ranks)
    return min(math.ceil(worst / MAX_COPIES), tokens)
