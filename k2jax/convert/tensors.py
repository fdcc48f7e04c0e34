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
import os
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from k2jax.convert.json_values import MOST_VALUES, read_json_object
from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import replacing
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.whole import foreign_content, open_regular

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000  # bytes; the library's own limit
MOST_AXES = 8  # of a tensor; the library has no limit, and weights have at most four

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

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

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
        size, length, raw = _raw_header(path)
        header = parse_bounded_json(raw, MOST_VALUES)
        header.pop("__metadata__", None)
        tensors = {name: _stored(path, 8 + length, entry) for name, entry in header.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; fetch the missing shard") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} has a damaged header; fetch it again") from error
    _check_places(path, tensors, 8 + length, size)
    return tensors


def _raw_header(path: Path) -> tuple[int, int, bytes]:
    """Size of a file, length of its header and the header."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if size < 8 or not 0 < length <= min(MAX_HEADER, size - 8):
            what = foreign_content(head + file.read(56)) or "is truncated or not a safetensors file; fetch it again"
            raise UserError(f"{path} {what}")
        return size, length, file.read(length)


def _stored(path: Path, data: int, entry: dict) -> StoredTensor:
    if entry["dtype"] not in DTYPES:
        raise UserError(f"{path} holds tensors of dtype {abbreviate(entry['dtype'])}, which is not supported")
    dtype, shape, (begin, end) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)) or len(shape) > MOST_AXES:
        raise ValueError("a size or an offset is no whole number")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("offsets and shape disagree")
    return StoredTensor(path, dtype, shape, data + begin)


def _check_places(path: Path, tensors: dict[str, StoredTensor], begin: int, size: int) -> None:
    """Raises UserError unless the tensors fill a file one after the other, as the format demands."""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].bytes)):
        if tensor.offset != begin:
            what = "overlaps the tensor before it" if tensor.offset < begin else "leaves a gap before it"
            raise UserError(f"{path} has a damaged header: {name} {what}; fetch it again")
        begin += tensor.bytes
        if begin > size:
            raise UserError(f"{path} is truncated: {name} ends at byte {begin:,} of {size:,}; fetch it again")
    if begin < size:
        raise UserError(f"{path} has {size - begin:,} bytes behind its last tensor; fetch it again")


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """Lists the tensors of a Hugging Face folder: of the files that its index names, or of ``model.safetensors``.

    Raises:
        UserError: no weights, weights twice, a missing or truncated shard, an index that does not fit the shards.
    """
    index = folder / INDEX
    if not (index.exists() or index.is_symlink()):
        if not (folder / SINGLE).exists():
            raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}; give a Hugging Face folder of safetensors")
        return read_header(folder / SINGLE)
    shard_of = read_json_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of or not all(isinstance(name, str) for name in shard_of.values()):
        raise UserError(f"{index} is damaged: its weight_map names no files of tensors; fetch it again")
    shards = sorted(set(shard_of.values()))
    for shard in shards:
        if (
            Path(shard).name != shard or shard in ("", "..") or "\0" in shard
        ):  # a downloaded index must not point outside its folder
            raise UserError(f"{index} names the shard {abbreviate(shard)}, which is not a file of its folder")
    if SINGLE not in shards and (folder / SINGLE).exists():
        raise UserError(f"{folder} holds {SINGLE} beside the files that {INDEX} names; delete what is not the model")
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        header = read_header(folder / shard)
        if stray := sorted(name for name in header if shard_of.get(name) != shard):
            raise UserError(
                f"{folder / shard} holds {abbreviate(stray[0])}, which {INDEX} does not say; fetch both again"
            )
        tensors |= header
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
