"""The tower and the projector, forward and backward, against transformers' own, float32.

Both compute 64 images of the same weights' shapes: of sizes with a long tail (photographs, icons, pages and
screenshots), and of one size, where nothing has to be packed. Ours lie in rows of ``LENGTH`` patches, as few as hold
them, on an emulated device for each of up to four cores of a CPU, as training on images is fastest there;
transformers gets all images in one call, and attends to each by itself. The last row counts padding.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from k2jax.bench.baseline import torch_tower
from k2jax.bench.timing import Row, cost_row, interleaved, rate_row
from k2jax.config import ModelConfig, model_preset
from k2jax.config.presets import vision_preset
from k2jax.data.images.patch_packing import GROUP, PatchChunk, fill_rows, pack_chunks, pack_rows, padding_waste
from k2jax.data.images.placement import PatchRows, place_chunks
from k2jax.model.vision.specs import vision_specs
from k2jax.model.vision.tower import vision_features
from k2jax.params import initialize
from k2jax.runtime import device_name

IMAGES, LENGTH = 64, 4096  # patches of a row, and of the largest image
DEVICES = 1, 2, 4  # numbers of devices that have equally many rows, of both kinds of images
_ROWS = "rows"  # the mesh's axis
ATTENTION = ("sdpa", "eager")  # implementations of transformers


def measure(rounds: int = 10) -> list[Row]:
    """Rows of patches per second, and of the share of padding."""
    _emulate_devices()
    model = dataclasses.replace(model_preset("nano"), vision=vision_preset("nano_vision"))
    rows = []
    mix = long_tailed_grids(np.random.default_rng(0), IMAGES)
    for title, grids in (
        (f"{IMAGES} images of mixed sizes", mix),
        (f"{IMAGES} images of 16 x 16", [(16, 16)] * IMAGES),
    ):
        chunks = _noise(grids, model)
        names = {name: _theirs(model, chunks, name) for name in ATTENTION}
        seconds = interleaved({"ours": _ours(model, chunks), **names}, rounds, warmup=1)
        best = min(names, key=seconds.__getitem__)
        patches = sum(chunk.patches for chunk in chunks)
        name = f"nano_vision forward + backward, {title}, {patches:,} patches"
        rates = patches / seconds["ours"], patches / seconds[best]
        device = f"{device_name()}, {jax.device_count()} devices"
        rows.append(rate_row(name, *rates, "patches/s", f"transformers, {best}", device=device))
    return [*rows, _padding(_noise(mix, model), model)]


def long_tailed_grids(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Heights and widths in patches: log-normal areas and aspects, even sides, at most ``LENGTH`` patches."""
    areas = np.clip(np.exp(rng.normal(5.5, 1.3, count)), GROUP, LENGTH)
    aspects = np.exp(rng.normal(0.0, 0.5, count))
    sides = np.sqrt(np.stack([areas * aspects, areas / aspects], 1))
    return [(height, width) for height, width in np.maximum(2, 2 * (sides / 2).astype(int)).tolist()]


def _emulate_devices() -> None:
    """One for each core, as far as rows divide evenly, unless the user says how many; the table names their number."""
    if jax.config.jax_num_cpu_devices < 0 and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0))
        jax.config.update("jax_num_cpu_devices", max(count for count in DEVICES if count <= cores))


def _noise(grids: list[tuple[int, int]], model: ModelConfig) -> list[PatchChunk]:
    rng, pixels = np.random.default_rng(1), 3 * model.vision.patch**2
    return [PatchChunk(rng.uniform(-1, 1, (h * w, pixels)).astype(np.float32), (1, h, w)) for h, w in grids]


def _ours(model: ModelConfig, chunks: list[PatchChunk]) -> Callable[[], Any]:
    sizes, devices = [chunk.patches for chunk in chunks], jax.device_count()
    rows = -(-len(fill_rows(sizes, LENGTH)) // devices) * devices
    filled = place_chunks([[size] for size in sizes], PatchRows(len(sizes), rows, LENGTH, devices), model.vision)
    mesh = jax.make_mesh((devices,), (_ROWS,))
    batch = pack_rows(chunks, filled, length=LENGTH, patch=model.vision.patch).batch
    patches = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(_ROWS)))
    params = jax.jit(
        lambda: initialize(vision_specs(model), jax.random.key(0), model.init_std),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )()

    def gradients(params: Any, patches: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.sum(jnp.square(vision_features(params, patches, model).features))

        return jax.grad(loss)(params)  # summed over devices, because the weights do not vary over them

    step = jax.jit(
        jax.shard_map(gradients, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec(_ROWS)), out_specs=PartitionSpec())
    )
    return lambda: step(params, patches)


def _theirs(model: ModelConfig, chunks: list[PatchChunk], attention: str) -> Callable[[], Any]:
    torch, tower, projector = torch_tower(model, attention)
    patch = model.vision.patch
    pixels = torch.tensor(np.concatenate([chunk.pixels for chunk in chunks]).reshape(-1, 3, patch, patch))
    grids = torch.tensor([chunk.grid for chunk in chunks])
    weights = [*tower.parameters(), *projector.parameters()]

    def step() -> None:
        features = projector(tower(pixels, grid_thw=grids).pooler_output)
        torch.autograd.grad(features.square().sum(), weights)

    return step


def _padding(chunks: list[PatchChunk], model: ModelConfig) -> Row:
    sizes = [chunk.patches for chunk in chunks]
    packed = pack_chunks(chunks, rows=len(fill_rows(sizes, LENGTH)), length=LENGTH, patch=model.vision.patch)
    ours, theirs = padding_waste(packed.batch), 1 - sum(sizes) / (len(sizes) * max(sizes))
    name = f"padding of {IMAGES} images of mixed sizes in rows of {LENGTH:,}"
    return cost_row(name, 100 * ours, 100 * theirs, "%", "every image padded to the largest", device="counted")
