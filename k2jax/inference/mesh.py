"""An engine on several devices: experts over the axis ``expert``, everything else of a sequence on one device.

Each device has slots and pages of its own, along ``data`` and ``expert`` alike, and a copy of all weights but the
routed experts. A decoding step sends tokens to the ranks of their experts and back, and nothing else: MLA's cache is
one latent for all heads, so cutting it by heads would copy it to every device.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import jax
from jax import Array
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.model import cast_params, model_specs, unstack_layers
from k2jax.model.feed_forward import Experts
from k2jax.parallel.torus import device_grid
from k2jax.sharding import param_shardings
from pallas_kernels.expert_exchange import expert_parallel

AXES = ("data", "expert")
ROWS = PartitionSpec(AXES)  # of a batch [rows, ...]
CACHE = PartitionSpec(None, AXES)  # [layers, pages, ...]
MOST_COPIES = 1 << 16
"""Rows that a device's experts compute in one go, in the worst case of all tokens choosing it: there is room for all of
them, so that nothing is ever dropped, and longer chunks of prompts are exchanged in parts."""


def make_mesh(data: int = 1, expert: int = 1, devices: Sequence[Any] | None = None) -> Mesh | None:
    """The mesh of an engine; None for one device, the default one.

    Args:
        data: groups of devices, each with all experts.
        expert: devices that share the experts.
        devices: the first ``data * expert`` of them are used; all that there are by default.

    Raises:
        UserError: there are fewer devices, or they are of several slices that ``data`` does not divide over.
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


def size(mesh: Mesh | None) -> int:
    """How many devices have slots."""
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


def place_params(params: Any, config: ModelConfig, mesh: Mesh | None) -> Any:
    """The compute copy of weights, in the dtype of the embedding, where an engine reads them.

    Raises:
        UserError: as ``param_specs``.
    """
    specs = model_specs(config)
    if mesh is not None:
        params = jax.tree.map(_spread, params, param_shardings(specs, mesh))
    params = cast_params(params, specs, params["embed"].dtype)
    platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
    return unstack_layers(params) if platform == "cpu" else params


def _spread(array: Any, sharding: NamedSharding) -> Array:
    """A weight, which every process may hold whole, as one array over all of them."""
    if sharding.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
        return jax.device_put(array, sharding)
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def place(array: Any, spec: PartitionSpec, mesh: Mesh | None) -> Array:
    """An array of the host on the devices; each process gives its own their part."""
    if mesh is None:
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])


def fetch(arrays: Any) -> Any:
    """Arrays of all rows as NumPy's, in every process."""
    if all(array.is_fully_addressable for array in jax.tree.leaves(arrays)):
        return jax.device_get(arrays)
    return multihost_utils.process_allgather(arrays, tiled=True)


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
    """In how many parts a device's tokens go to the experts, so that each has room for every choice of every token."""
    worst = tokens * ranks * min(config.active_experts, config.experts // ranks)
    return min(math.ceil(worst / MOST_COPIES), tokens)
