"""Folders of safetensors files, read and written a few rows at a time.

The safetensors library maps whole files or holds whole shards, which a trillion parameters make too large. The format
is a length, a JSON header and raw bytes (https://github.com/huggingface/safetensors), so rows are read directly from
their offset. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
import json
import math
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from k2jax.errors import UserError
from k2jax.files.atomic import replacing

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000  # bytes; the library's own limit

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U8": np.dtype(np.uint8),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


class StoredTensor(NamedTuple):
    """A tensor's place in a safetensors file.

    Attributes:
        file: the safetensors file.
        dtype: dtype of the elements.
        shape: sizes of the axes.
        offset: position of its first byte in the file.
    """

    file: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows ``start`` to ``stop`` (indices of the first axis; a scalar is one row) into a new array."""
        rows = self.shape[0] if self.shape else 1
        stop = rows if stop is None else stop
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        try:
            with open(self.file, "rb") as file:
                file.seek(self.offset + start * row)
                data = np.fromfile(file, np.uint8, (stop - start) * row)
        except OSError as error:
            raise UserError(f"cannot read {self.file}: {error.strerror}") from error
        if data.size != (stop - start) * row:
            raise UserError(f"{self.file} is shorter than its header says; fetch it again")
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        return data.view(self.dtype).reshape(shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Lists the tensors of one safetensors file by name.

    Raises:
        UserError: it is missing, truncated, or not a safetensors file.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 0 < length <= min(MAX_HEADER, size - 8):
                raise UserError(f"{path} is truncated or not a safetensors file; fetch it again")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensors = {name: _stored(path, 8 + length, entry) for name, entry in header.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; fetch the missing shard") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} has a damaged header; fetch it again") from error
    for name, tensor in tensors.items():
        end = tensor.offset + math.prod(tensor.shape) * tensor.dtype.itemsize
        if end > size:
            raise UserError(f"{path} is truncated: {name} ends at byte {end:,} of {size:,}; fetch it again")
    return tensors


def _stored(path: Path, data: int, entry: dict) -> StoredTensor:
    if entry["dtype"] not in DTYPES:
        raise UserError(f"{path} holds tensors of dtype {entry['dtype']}, which is not supported")
    dtype, shape = DTYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"])
    begin, end = entry["data_offsets"]
    if begin < 0 or min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("offsets and shape disagree")
    return StoredTensor(path, dtype, shape, data + begin)


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """Lists the tensors of a Hugging Face folder: of the files that its index names, or of ``model.safetensors``.

    Raises:
        UserError: no weights, a missing or truncated shard, an index that does not fit the shards.
    """
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}; give a Hugging Face folder of safetensors")
        return read_header(folder / SINGLE)
    try:
        shard_of = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(shard_of.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is damaged; fetch it again") from error
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        if Path(shard).name != shard:  # a downloaded index must not point outside its folder
            raise UserError(f"{index} names the shard {shard!r}, which is not a file of its folder")
        header = read_header(folder / shard)
        tensors |= {name: tensor for name, tensor in header.items() if shard_of.get(name) == shard}
    lost = sorted(shard_of.keys() - tensors.keys())
    if lost:
        raise UserError(f"{shard_of[lost[0]]} lacks {lost[0]}" + (f" and {len(lost) - 1} more" if lost[1:] else ""))
    return tensors


class Planned(NamedTuple):
    """A tensor that will be written."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def plan_shards(tensors: Iterable[Planned], shard_bytes: int) -> list[list[Planned]]:
    """Cuts a list of tensors into files of at most ``shard_bytes`` (a larger tensor gets a file of its own)."""
    shards: list[list[Planned]] = []
    size = 0
    for tensor in tensors:
        if not shards or size + tensor.bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.bytes
    return shards


def shard_names(count: int) -> list[str]:
    """Returns Hugging Face's file names of ``count`` shards."""
    return [SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


@contextlib.contextmanager
def write_shard(path: Path, tensors: list[Planned]) -> Iterator[Callable[[np.ndarray], None]]:
    """Writes one safetensors file front to back; it appears under its name only when it is complete.

    Yields:
        A function that appends rows of the current tensor.
    """
    entries, offset = {}, 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.bytes],
        }
        offset += tensor.bytes
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    header += b" " * (-len(header) % 8)  # readers may map the data, which should be aligned
    with replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        yield lambda rows: file.write(np.ascontiguousarray(rows).tobytes())
        assert file.tell() == 8 + len(header) + offset, "fewer or more rows were written than planned"
