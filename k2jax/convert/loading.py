"""Loads parameters from any checkpoint argument: a workdir, a step of it, a Hugging Face folder or a model's name."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import functools
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, Sharding, SingleDeviceSharding
import numpy as np

from k2jax import checkpoint
from k2jax.config.replace import replace_keys
from k2jax.config.schema import ModelConfig
from k2jax.convert import hub
from k2jax.convert.mapping import Block, blocks, to_region
from k2jax.convert.packaged import PACKAGED, open_packaged, packaged_tokenizer
from k2jax.convert.siglip import SiglipTower, is_siglip
from k2jax.convert.source import CheckedTensors, Source, open_folder
from k2jax.errors import UserError
from k2jax.model import K2, model_specs
from k2jax.model.vision import multimodal_specs
from k2jax.params import ParamSpec, Specs, is_spec, map_specs, named_specs
from k2jax.sharding import param_shardings
from k2jax.text.tokenizer import Tokenizer, load_tokenizer

Region = tuple[slice, ...]  # part of a weight: a slice with both ends for every axis
Read = Callable[[str, ParamSpec, Region], np.ndarray]
_ALIGNMENT = 64  # bytes
_READERS = min(8, os.cpu_count() or 1)  # parts of a weight that are read at a time
_READ_ELEMENTS = 1 << 20
"""Largest of these parts. A larger one would not stay in a processor's cache, and take more memory beside the weights
that the system has to clear first."""


class Pretrained(NamedTuple):
    """A loaded checkpoint.

    Attributes:
        model: the architecture.
        params: parameter tree.
        origin: what was read, as printed for the user.
    """

    model: ModelConfig
    params: Any
    origin: str


class Opened(NamedTuple):
    """An opened checkpoint whose weights are not read yet.

    Attributes:
        model: the architecture.
        read: reads a region of a weight.
        dtype: the dtype in which a weight is read.
        origin: what is read, as printed for the user.
    """

    model: ModelConfig
    read: Read
    dtype: Callable[[str, ParamSpec], np.dtype]
    origin: str

    def params(self, shardings: Any, dtype: Any = None) -> Any:
        """Reads the parameter tree, one weight at a time, so that the host holds only one beside the model.

        Args:
            shardings: of every weight of ``model_specs(model)`` or ``multimodal_specs(model)``, or of a part of that
                tree, which alone is read; each process reads only what its devices hold.
            dtype: dtype of all weights but router biases; None keeps what is stored.

        Raises:
            UserError: a weight cannot be read.
        """
        specs = _part(multimodal_specs(self.model), shardings)
        leaves = [array for _, array in self.leaves(shardings, dtype)]
        return jax.tree.unflatten(jax.tree.structure(specs, is_leaf=is_spec), leaves)

    def leaves(self, shardings: Any, dtype: Any = None) -> Iterator[tuple[str, jax.Array]]:
        """Reads one weight after the other, see ``params``; yields names and arrays that nobody else holds."""
        specs = _part(multimodal_specs(self.model), shardings)
        for (name, spec), sharding in zip(named_specs(specs), jax.tree.leaves(shardings), strict=True):
            yield name, _place(self.read, name, spec, sharding, self._kept(spec, dtype))

    def host_leaves(self, vision: bool = False) -> Iterator[tuple[str, np.ndarray]]:
        """As ``leaves``, whole in this process' memory and as they are stored; with ``vision`` also the tower's."""
        for name, spec in named_specs(_specs(self.model, vision)):
            yield name, self.read(name, spec, tuple(slice(0, size) for size in spec.shape))

    def abstract(self, dtype: Any = None, vision: bool = False) -> Any:
        """Shapes and dtypes of the weights that ``host_leaves`` reads, a tree of ShapeDtypeStructs."""
        specs = _specs(self.model, vision)
        leaves = [
            jax.ShapeDtypeStruct(spec.shape, self._kept(spec, dtype) or self.dtype(name, spec))
            for name, spec in named_specs(specs)
        ]
        return jax.tree.unflatten(jax.tree.structure(specs, is_leaf=is_spec), leaves)

    @staticmethod
    def _kept(spec: ParamSpec, dtype: Any) -> Any:
        """The dtype that a weight is cast to, or None."""
        return None if spec.role == "router_bias" else dtype


def from_pretrained(
    path: str | Path, *, dtype: Any = None, mesh: Mesh | None = None, vision: bool = True
) -> tuple[K2, Any]:
    """Loads a model that is ready to apply, and its parameters.

    Nothing is unpickled and no code of the checkpoint runs.

    Example:
        >>> model, params = k2jax.from_pretrained("smollm2")
        >>> logits = model.apply({"params": params}, tokens).logits

    Args:
        path: a workdir, ``WORKDIR/checkpoints/STEP``, a Hugging Face folder, ``hub:ORG/NAME`` for a model of the hub,
            or a packaged model's name (``smollm2``).
        dtype: dtype of parameters and computation; None keeps what is stored. Routers compute in float32.
        mesh: where to put the parameters, by the rules of ``k2jax.sharding``; each process reads only what its devices
            hold. None is the default device. Every device holds the whole tower.
        vision: whether to load the tower and projector of a model that has them.

    Raises:
        UserError: it cannot be read, its architecture is unknown, or a weight does not divide over the mesh.
    """
    loaded = load_pretrained(path, dtype, mesh, vision)
    return K2(loaded.model, dtype=loaded.params["embed"].dtype), loaded.params


def load_pretrained(path: str | Path, dtype: Any = None, mesh: Mesh | None = None, vision: bool = False) -> Pretrained:
    """Loads architecture and parameters of the decoder, with ``vision`` also of the tower; see ``from_pretrained``."""
    opened = open_pretrained(path)
    return Pretrained(opened.model, opened.params(shardings_on(opened.model, mesh, vision), dtype), opened.origin)


def shardings_on(model: ModelConfig, mesh: Mesh | None, vision: bool = False) -> Any:
    """Shardings of every weight of a decoder on a mesh, with ``vision`` also of the tower; None: the default device."""
    specs, default = _specs(model, vision), SingleDeviceSharding(jax.devices()[0])
    if mesh is None:
        return map_specs(lambda spec: default, specs)
    shardings = param_shardings(model_specs(model), mesh)
    if "vision" in specs:
        shardings["vision"] = param_shardings(specs["vision"], mesh, {})
    return shardings


def _specs(model: ModelConfig, vision: bool) -> Specs:
    return multimodal_specs(model) if vision else model_specs(model)


def _part(specs: Specs, shardings: Any) -> Specs:
    """The specs of those weights that have shardings."""
    return {
        name: _part(specs[name], part) if isinstance(part, dict) else specs[name] for name, part in shardings.items()
    }


def open_tower(path: str | Path, grid: int) -> Opened:
    """Opens what a tower begins from: a checkpoint argument, or a Hugging Face folder of SigLIP, which has no more.

    Args:
        path: of it.
        grid: side of the tower's grid of positions, to which those of SigLIP are resampled.

    Raises:
        UserError: it cannot be read, or has no tower.
    """
    path = hub.local(path)
    if not is_siglip(path):
        opened = open_pretrained(path)
        if not opened.model.vision.layers:
            raise UserError(f"{path} is a model without vision")
        return opened
    source = SiglipTower(path, grid)
    resized = f"{source.given} x {source.given} positions as {grid} x {grid}"
    origin = f"{path} (SigLIP; {resized}; the projector is not in it)"
    return Opened(source.model, functools.partial(_gather, source), lambda name, spec: source.dtype(spec), origin)


def open_pretrained(path: str | Path) -> Opened:
    """Opens a checkpoint argument: reads its architecture and no weights yet.

    Raises:
        UserError: it cannot be read, or its architecture is unknown.
    """
    path = hub.local(path)
    if is_run(path):
        step = checkpoint.checkpoint_step(path)
        # This machine decides which kernels run, not the machine that trained.
        model = replace_keys(checkpoint.checkpoint_config(step).model, {"kernels": "auto"})
        reader = checkpoint.ParamsReader(step, [name for name, _ in named_specs(multimodal_specs(model))])
        dtype = lambda name, spec: reader.dtype(name)  # noqa: E731
        return Opened(model, functools.partial(_stored, reader), dtype, f"{path}, step {step.name}")
    source = open_source(path)
    return Opened(source.model, functools.partial(_gather, source), lambda name, spec: source.dtype(spec), str(path))


def open_source(path: str | Path) -> Source:
    """Opens a Hugging Face folder, a model of its hub, or a packaged model by its name.

    Raises:
        UserError: it is none of these.
    """
    path = hub.local(path)
    if str(path) in PACKAGED and not Path(path).exists():
        return open_packaged(str(path))
    _check_exists(path)
    return open_folder(path)


def is_run(path: str | Path) -> bool:
    """Whether a checkpoint argument is a workdir or one of its steps, rather than a Hugging Face folder."""
    folder = checkpoint.run_folder(path)
    return folder != Path(path).absolute() or (folder / "checkpoints").is_dir()


def tokenizer_of(path: str | Path) -> Tokenizer:
    """Loads the tokenizer of a checkpoint argument, or from a tokenizer's own file or folder.

    Example:
        >>> tokenizer = k2jax.load_tokenizer("runs/nano")
        >>> tokenizer.decode(tokenizer.encode("def "))

    Args:
        path: as of ``from_pretrained``; also a ``tokenizer.json``, a rank file or a folder with one.

    Raises:
        UserError: it cannot be read, or is not the one that the checkpoint was trained with.
    """
    path = hub.local(path)
    if str(path) in PACKAGED and not Path(path).exists():
        return packaged_tokenizer(str(path))
    if not is_run(path) and not Path(path).is_file():
        _check_exists(path)
    tokenizer = load_tokenizer(tokenizer_folder(path))
    if is_run(path):
        fingerprint = checkpoint.read_meta(checkpoint.checkpoint_step(path)).get("identity", {}).get("tokenizer")
        if fingerprint not in (None, tokenizer.fingerprint):  # None: it came without one, or is of an older format
            raise UserError(f"{tokenizer_folder(path)} is not the tokenizer that {path} was trained with; put it back")
    return tokenizer


def tokenizer_folder(path: str | Path) -> Path:
    """Returns the folder that holds the tokenizer of a workdir or of a Hugging Face folder."""
    return checkpoint.run_folder(path) / "tokenizer" if is_run(path) else Path(hub.local(path))


def _check_exists(path: str | Path) -> None:
    if not Path(path).is_dir():
        raise UserError(
            f"no checkpoint {path}: give a workdir, a Hugging Face folder, hub:ORG/NAME for a model of its hub, or "
            f"one of {', '.join(PACKAGED)}"
        )


def _place(read: Read, name: str, spec: ParamSpec, sharding: Sharding, dtype: Any) -> jax.Array:
    """Reads a weight and puts it on its devices; None keeps its dtype."""

    @functools.cache  # devices that hold the same region ask for it one after the other
    def region(*bounds: tuple[int, int]) -> np.ndarray:
        array = read(name, spec, tuple(slice(*pair) for pair in bounds))
        return array if dtype is None else array.astype(dtype, copy=False)

    def of_device(index: tuple[slice, ...]) -> np.ndarray:
        return region(*(part.indices(size)[:2] for part, size in zip(index, spec.shape, strict=True)))

    return jax.make_array_from_callback(spec.shape, sharding, of_device)


def _stored(reader: checkpoint.ParamsReader, name: str, spec: ParamSpec, region: Region) -> np.ndarray:
    """Reads a region of a weight from a checkpoint."""
    if reader.shape(name) != spec.shape:
        raise UserError(
            f"the checkpoint does not fit its config.json: {name} is {reader.shape(name)}, not {spec.shape}"
        )
    return reader.read(name, region)


def _gather(source: CheckedTensors, name: str, spec: ParamSpec, region: Region) -> np.ndarray:
    """A region of a weight from the blocks of Hugging Face tensors that reach into it."""
    array = aligned_empty([bounds.stop - bounds.start for bounds in region], source.dtype(spec))

    def read(block: Block) -> None:
        common = [_overlap(entry, bounds) for entry, bounds in zip(block.index, region, strict=True)]
        if None in common:
            return
        rows = source.read(block.name, block.start, block.stop)
        into, part = (tuple(pair[side] for pair in common) for side in (0, 1))
        kept = tuple(cut for cut, entry in zip(part, block.index, strict=True) if isinstance(entry, slice))
        array[into] = to_region(spec, rows)[kept]

    # NumPy lets go of Python's lock while it dequantises and transposes.
    with ThreadPoolExecutor(_READERS, "blocks") as readers:
        collections.deque(readers.map(read, blocks(spec, _READ_ELEMENTS)), maxlen=0)  # raises what a block has raised
    return array


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """As ``np.empty``, at an address at which a CPU backend takes the array over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _overlap(entry: int | slice, bounds: slice) -> tuple[int | slice, slice] | None:
    """Where an index of a block lies within a region, and the part of the block that does; None if none does."""
    if isinstance(entry, int):
        inside = bounds.start <= entry < bounds.stop
        return (entry - bounds.start, slice(None)) if inside else None
    first = entry.start or 0
    start, stop = max(first, bounds.start), min(bounds.stop if entry.stop is None else entry.stop, bounds.stop)
    if start >= stop:
        return None
    return slice(start - bounds.start, stop - bounds.start), slice(start - first, stop - first)
