"""How arrays lie in a checkpoint: zarr version 3, every chunk with a checksum that is verified whenever it is read.

OCDBT, the database in which orbax keeps arrays, guards its manifest and its index by checksums but not the data they
point to, and orbax guards the index of a shard alone. So orbax's choice of codecs is replaced by the one below, which
every reader of zarr knows: zstd, as orbax compresses zarr version 2, with the checksum (XXH64) that a zstd frame may
end with. The codec ``crc32c`` detects the same damage and costs a save a tenth more, for a pass of its own; it guards
chunks that are not compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization import tensorstore_utils
import tensorstore as ts

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_COMPRESSION = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
_CHECKSUM = {"name": "crc32c"}
_DESCRIPTION = "_METADATA"
"""Orbax's file, in the folder of an item, that lists the item's arrays."""


def array_metadata(shape: Sequence[int], chunks: Sequence[int], compress: bool = True) -> dict[str, Any]:
    """The zarr metadata of an array: its grid of chunks, and what encodes them and ends with a checksum."""
    return {
        "shape": tuple(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": tuple(chunks)}},
        "codecs": [_BYTES, _COMPRESSION if compress else _CHECKSUM],
    }


def _replace_in_orbax(name: str, function: Any) -> None:
    if not hasattr(tensorstore_utils, name):
        raise ImportError(f"this version of orbax-checkpoint has no {name}: k2jax cannot give its arrays checksums")
    setattr(tensorstore_utils, name, function)


_replace_in_orbax(
    "_build_zarr3_metadata",
    lambda global_shape, chunk_shape, use_compression: array_metadata(global_shape, chunk_shape, use_compression),
)


def tree_handler() -> ocp.PyTreeCheckpointHandler:
    """Orbax's handler of a tree of arrays, which writes as above and reads zarr version 2 as well."""
    return ocp.PyTreeCheckpointHandler(use_zarr3=True)


def description(item: Path) -> dict[str, Any]:
    """What orbax says of an item's arrays.

    Raises:
        ValueError: the file is damaged.
        OSError: it is missing or cannot be read.
    """
    found = json.loads((item / _DESCRIPTION).read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not isinstance(found.get("tree_metadata"), dict):
        raise ValueError(f"{item / _DESCRIPTION} does not describe arrays")
    return found


def open_array(item: Path, name: str, context: ts.Context | None = None) -> ts.TensorStore:
    """A stored array, of this format or of zarr version 2.

    Args:
        item: folder of an item.
        name: of the array, its path in the tree with dots.
        context: of tensorstore, with the cache to use.

    Raises:
        ValueError: it cannot be read.
        OSError: the item's description cannot.
    """
    driver = "zarr3" if description(item).get("use_zarr3") else "zarr"
    return ts.open(_spec(item, name, driver), context=context, open=True).result()


def create_array(item: Path, name: str, dtype: np.dtype, metadata: dict[str, Any]) -> ts.TensorStore:
    """An empty array in the place of the one that is there; arguments as of ``open_array`` and ``array_metadata``."""
    spec = _spec(item, name, "zarr3") | {"metadata": metadata | {"data_type": np.dtype(dtype).name}}
    return ts.open(spec, create=True, delete_existing=True).result()


def read_all(item: Path) -> None:
    """Reads every chunk of every array of an item once.

    Raises:
        ValueError: one cannot be read, or differs from what was written.
        OSError: the item's description cannot be read.
    """
    for entry in description(item)["tree_metadata"].values():
        if entry["value_metadata"]["skip_deserialize"]:  # an empty place of the tree, of which nothing is stored
            continue
        name = ".".join(str(key["key"]) for key in entry["key_metadata"])
        array = open_array(item, name)
        for region in _regions(array.shape, array.chunk_layout.read_chunk.shape or ()):  # None for a scalar
            array[region].read().result()


def _regions(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    starts = (range(0, size, step) for size, step in zip(shape, chunk, strict=True))
    for corner in itertools.product(*starts):
        ends = (min(start + step, size) for start, step, size in zip(corner, chunk, shape, strict=True))
        yield tuple(slice(start, end) for start, end in zip(corner, ends, strict=True))


def _spec(item: Path, name: str, driver: str) -> dict[str, Any]:
    return {
        "driver": driver,
        "kvstore": {"driver": "ocdbt", "base": f"file://{item.absolute()}", "path": name.replace("/", ".") + "/"},
        "recheck_cached_data": "open",
        "fill_missing_data_reads": False,  # a chunk that is missing never means zeros, so zeros are written
        "store_data_equal_to_fill_value": True,
    }
