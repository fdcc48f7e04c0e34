"""What checking costs: saving and restoring a checkpoint, and opening and reading a large corpus, with and without.

The checkpoint holds 512 MiB. Without checks it is written with the same chunks and compression but no checksums. The
corpus has 10 GB of tokens, which opening does not read, in sparse files. A pass over a stream reads without checks what
an earlier pass has checked.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import hashlib
import os
from pathlib import Path
import tempfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint._src.serialization import tensorstore_utils

from k2jax.bench.timing import Row, interleaved, time_row
from k2jax.checkpoint import Checkpoints
from k2jax.data.blocks import BLOCK
from k2jax.data.manifest import FORMAT, HELD_OUT, TRAIN, write_manifest
from k2jax.data.shards import TokenStream, open_shards

_LEAVES, _SHAPE = 8, (16, 1024, 1024)  # 64 MiB each, in 64 chunks
_SHARD_BYTES, _DOCUMENT = 128 * 2**20, 2048
_ROW = 4096  # tokens


def measure(rounds: int = 10) -> list[Row]:
    """Rows of checkpoints and of the corpus."""
    return [*_checkpoint_rows(rounds), *_corpus_rows(rounds)]


def _checkpoint_rows(rounds: int) -> list[Row]:
    leaves = {str(i): jax.random.normal(jax.random.key(i), _SHAPE) for i in range(_LEAVES)}
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), leaves)
    optimizer, abstract_optimizer = {"count": jnp.int32(0)}, {"count": abstract["0"].update(shape=(), dtype=jnp.int32)}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        kept = {}
        for name in ("checked", "unchecked"):
            kept[name] = stack.enter_context(contextlib.closing(Checkpoints(Path(folder) / name, keep=1)))
        steps = dict.fromkeys(kept, 0)

        def save(name: str) -> None:
            steps[name] += 1
            with contextlib.nullcontext() if name == "checked" else _without_checksums():
                kept[name].save(steps[name], leaves, optimizer, {})
                kept[name].wait()

        def restore(name: str) -> list:
            return kept[name].restore(steps[name], abstract, abstract_optimizer)

        rows = []
        for what, run in (("save", save), ("restore", restore)):
            seconds = interleaved({name: lambda name=name, run=run: run(name) for name in kept}, rounds)
            rows.append(_row(f"{what} a checkpoint of {_LEAVES * 64} MiB", seconds))
        return rows


@contextlib.contextmanager
def _without_checksums() -> Iterator[None]:
    build = tensorstore_utils._build_zarr3_metadata

    def unchecked(*arguments, **options) -> dict:
        metadata = build(*arguments, **options)
        bytes_codec, zstd = metadata["codecs"]
        zstd = zstd | {"configuration": zstd["configuration"] | {"checksum": False}}
        return metadata | {"codecs": [bytes_codec, zstd]}

    tensorstore_utils._build_zarr3_metadata = unchecked
    try:
        yield
    finally:
        tensorstore_utils._build_zarr3_metadata = build


def _corpus_rows(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = _sparse_corpus(folder, shards=75)
        seconds = interleaved({"checked": lambda: open_shards(folder), "unchecked": lambda: _map(folder)}, rounds)
        rows = [_row("open a corpus of 10 GB", seconds)]
        starts = np.random.default_rng(0).permutation(_SHARD_BYTES // (2 * _ROW))[:5000] * _ROW
        checked = TokenStream(folder, HELD_OUT, manifest)

        def read(stream: TokenStream) -> None:
            for start in starts.tolist():
                stream.read(start, start + _ROW)

        seconds = interleaved(
            {"checked": lambda: read(TokenStream(folder, HELD_OUT, manifest)), "unchecked": lambda: read(checked)},
            rounds,
        )
        return [*rows, _row(f"read {len(starts):,} random rows of {_ROW:,} tokens for the first time", seconds)]


def _sparse_corpus(folder: Path, shards: int) -> dict:
    """Files of zeros that take no room, with real indices; returns the manifest."""
    files, splits = {}, {}
    for split, count in ((TRAIN, shards), (HELD_OUT, 1)):
        (folder / split).mkdir()
        for i in range(count):
            path = folder / split / f"tokens-{i:05d}.bin"
            path.touch()
            os.truncate(path, _SHARD_BYTES)
            files[f"{split}/{path.name}"] = {"bytes": _SHARD_BYTES, "sha256": ""}
        documents = count * _SHARD_BYTES // 2 // _DOCUMENT
        indices = {
            "offsets.npy": np.arange(documents + 1, dtype=np.int64) * _DOCUMENT,
            "bytes.npy": np.full(documents, 4 * _DOCUMENT, np.uint32),
            "blocks.npy": np.full(count * _SHARD_BYTES // BLOCK, zlib.crc32(bytes(BLOCK)), np.uint32),
        }
        for name, values in indices.items():
            np.save(folder / split / name, values)
            content = (folder / split / name).read_bytes()
            files[f"{split}/{name}"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        splits[split] = {"documents": documents, "tokens": documents * _DOCUMENT, "bytes": documents * 4 * _DOCUMENT}
    manifest = {"format": FORMAT, "dtype": "uint16", "tokenizer": {"vocab_size": 2**16}}
    manifest |= {"splits": splits, "files": files}
    write_manifest(folder, manifest)
    return manifest


def _map(folder: Path) -> list[np.ndarray]:
    """Opening without checks: every file is mapped into memory."""
    indices = [np.load(path, mmap_mode="r") for path in folder.glob("*/*.npy")]
    return [*indices, *(np.memmap(path, np.uint16, mode="r") for path in folder.glob("*/*.bin"))]


def _row(name: str, seconds: dict[str, float]) -> Row:
    return time_row(name, seconds["checked"], seconds["unchecked"], "the same without checks")
