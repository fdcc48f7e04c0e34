"""Parameters of a checkpoint written and read region by region, for weights that do not fit in memory.

The result is an ordinary checkpoint: orbax writes it with every weight empty, then the arrays are replaced, in the
same place and format, by ones of full size that are filled through tensorstore. It moves into ``checkpoints/STEP``
when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import json
from pathlib import Path
import shutil
from typing import Any, NamedTuple

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from k2jax.checkpoint.folders import FOLDER
from k2jax.checkpoint.manager import damaged, not_written
from k2jax.checkpoint.meta import sealed
from k2jax.checkpoint.storage import array_metadata, create_array, open_array, tree_handler

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

    Raises:
        UserError: the folder could not be written.
    """

    def __init__(self, folder: Path, step: int, layouts: Mapping[str, StoredArray], meta: dict, identity: Any):
        self._folder, self._step, self._layouts = folder, step, layouts
        self._done_file = folder / "done.txt"
        begun = folder / "begun.json"
        with self._writing():
            if not _is(begun, identity):
                shutil.rmtree(folder, ignore_errors=True)
                self._write_skeleton(meta)
                for name, layout in layouts.items():
                    # Trained weights hardly shrink.
                    metadata = array_metadata(layout.shape, layout.chunks, compress=False)
                    create_array(self._params, name, layout.dtype, metadata)
                begun.write_text(json.dumps(identity))  # last: without it the folder is begun anew
            self._arrays = {name: open_array(self._params, name) for name in layouts}
        lines = self._done_file.read_bytes().splitlines(keepends=True) if self._done_file.exists() else []
        self.done = {line[:-1].decode(errors="replace") for line in lines if line.endswith(b"\n")}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of tensorstore and orbax, many kinds
            raise not_written(self._folder, error) from error

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
            item_handlers={"params": tree_handler(), "meta": ocp.JsonCheckpointHandler()},
        )
        meta = sealed(meta, self._step)
        with manager:
            manager.save(
                self._step,
                args=ocp.args.Composite(
                    params=ocp.args.PyTreeSave(tree, custom_metadata={"save": meta["save"]}),
                    meta=ocp.args.JsonSave(meta),
                ),
            )

    def write(self, name: str, index: tuple, region: np.ndarray) -> None:
        """Writes a region durably.

        Raises:
            UserError: it could not be written; so do ``mark`` and ``commit``.
        """
        with self._writing():
            self._arrays[name][index].write(region).result()

    def mark(self, key: str) -> None:
        """Records that everything belonging to ``key`` is written."""
        with self._writing(), open(self._done_file, "a") as file:
            file.write(key + "\n")
        self.done.add(key)

    def commit(self, workdir: Path) -> None:
        """Moves the finished checkpoint into the workdir."""
        target = workdir.absolute() / FOLDER / str(self._step)
        with self._writing():
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
            self._arrays = {name: open_array(step_folder / "params", name, context) for name in names}
        except (ValueError, OSError) as error:
            raise damaged(self._folder, error) from error

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
        except (ValueError, OSError) as error:
            raise damaged(self._folder, error) from error


def _is(file: Path, value: Any) -> bool:
    """Whether a file holds a JSON value; a damaged one does not."""
    try:
        return file.is_file() and json.loads(file.read_text(encoding="utf-8")) == value
    except ValueError:
        return False
