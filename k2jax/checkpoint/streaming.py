"""Parameters of a checkpoint written and read region by region, for weights that do not fit in memory.

The result is an ordinary checkpoint: orbax writes it with every weight empty, then the arrays are replaced, in the
same place and format, by ones of full size that are filled through tensorstore. It moves into ``checkpoints/STEP``
when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
import shutil
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from k2jax.checkpoint.manager import FOLDER, FORMAT
from k2jax.errors import UserError

CACHE_BYTES = 1 << 28  # of decoded chunks kept while reading: a chunk may hold many regions


class StoredArray(NamedTuple):
    """How one weight is stored: its shape, dtype and chunks."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]


class ParamsWriter:
    """A checkpoint in the making, which survives being killed.

    Args:
        folder: of the unfinished checkpoint; one that is there, made for the same ``identity``, is continued.
        layouts: by the weight's path, ``moe/experts/w13``.
        meta: JSON values of the checkpoint.
        identity: JSON values that say what is being written; another identity starts anew.
    """

    def __init__(self, folder: Path, step: int, layouts: Mapping[str, StoredArray], meta: dict, identity: Any):
        self._folder, self._step, self._layouts = folder, step, layouts
        self._done_file = folder / "done.txt"
        begun = folder / "begun.json"
        if not (begun.is_file() and json.loads(begun.read_text()) == identity):
            shutil.rmtree(folder, ignore_errors=True)
            self._write_skeleton(meta)
            for name, layout in layouts.items():
                _open(self._params, name, layout)
            begun.write_text(json.dumps(identity))  # last: without it the folder is begun anew
        self._arrays = {name: _open(self._params, name) for name in layouts}
        lines = self._done_file.read_text().splitlines(keepends=True) if self._done_file.exists() else []
        self.done = {line[:-1] for line in lines if line.endswith("\n")}

    @property
    def _params(self) -> Path:
        return self._folder / str(self._step) / "params"

    def _write_skeleton(self, meta: dict) -> None:
        tree: dict = {}
        for name, layout in self._layouts.items():
            *path, last = name.split("/")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[last] = np.zeros((1,), layout.dtype)
        manager = ocp.CheckpointManager(
            self._folder.absolute(),
            options=ocp.CheckpointManagerOptions(enable_async_checkpointing=False),
            item_names=("params", "meta"),
        )
        with manager:
            manager.save(
                self._step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(tree),
                    meta=ocp.args.JsonSave({**meta, "format": FORMAT, "step": self._step}),
                ),
            )

    def write(self, name: str, index: tuple, region: np.ndarray) -> None:
        """Writes a region durably."""
        self._arrays[name][index].write(region).result()

    def mark(self, key: str) -> None:
        """Records that everything belonging to ``key`` is written."""
        with open(self._done_file, "a") as file:
            file.write(key + "\n")
        self.done.add(key)

    def commit(self, workdir: Path) -> None:
        """Moves the finished checkpoint into the workdir."""
        target = workdir.absolute() / FOLDER / str(self._step)
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / str(self._step)).rename(target)
        shutil.rmtree(self._folder)  # what is left says no more than that the checkpoint was begun


class ParamsReader:
    """The parameters of ``WORKDIR/checkpoints/STEP``, region by region.

    Args:
        step_folder: the checkpoint.
        names: paths of the weights.

    Raises:
        UserError: they cannot be read.
    """

    def __init__(self, step_folder: Path, names: list[str]):
        self._folder = step_folder
        try:
            context = ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
            self._arrays = {name: _open(step_folder / "params", name, context=context) for name in names}
        except ValueError as error:
            raise self._unreadable(error) from error

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight."""
        return tuple(self._arrays[name].shape)

    def dtype(self, name: str) -> np.dtype:
        """Stored dtype of a weight."""
        return np.dtype(self._arrays[name].dtype.numpy_dtype)

    def read(self, name: str, index: tuple) -> np.ndarray:
        """A region."""
        try:
            return self._arrays[name][index].read().result()
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f"checkpoint {self._folder} cannot be read ({' '.join(str(error).split())[:200]})")


def _open(
    params: Path, name: str, create: StoredArray | None = None, context: ts.Context | None = None
) -> ts.TensorStore:
    """The array of a weight in orbax's layout; made anew where a layout is given."""
    spec: dict[str, Any] = {
        "driver": "zarr",
        "kvstore": {
            "driver": "ocdbt",
            "base": f"file://{params.absolute()}",
            "path": name.replace("/", ".") + "/",
        },
        "recheck_cached_data": "open",
    }
    if create:
        spec["metadata"] = {
            "shape": create.shape,
            "chunks": create.chunks,
            "dtype": "bfloat16" if create.dtype == ml_dtypes.bfloat16 else create.dtype.str,
            "compressor": None,  # trained weights hardly shrink
            "fill_value": None,
            "dimension_separator": ".",
        }
    return ts.open(spec, context=context, create=bool(create), delete_existing=bool(create), open=not create).result()
