"""Folders of shards over computed files: their manifests, tables and checksums are those of real ones."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np

from k2jax.data.manifest import FORMAT, HELD_OUT, TRAIN, write_manifest
from k2jax.data.shards import Shards, open_shards
from k2jax.data.synthetic.virtual_files import TOKENS, VirtualFiles, VirtualSplit

VOCABULARY = 163_840


def synthetic_files(groups: int, seed: int) -> VirtualFiles:
    """The files of a source of ``groups * 2^23`` tokens for training, and one group held out."""
    return VirtualFiles({TRAIN: VirtualSplit(groups, 2 * seed), HELD_OUT: VirtualSplit(1, 2 * seed + 1)})


def write_source(folder: Path, files: VirtualFiles) -> None:
    """Writes what is read whole of a source: its manifest and its tables."""
    entries, splits = {}, {}
    for split, virtual in files.splits.items():
        (folder / split).mkdir(parents=True)
        for name, size in virtual.sizes.items():
            path = f"{split}/{name}"
            entries[path] = {"bytes": size, "sha256": hashlib.sha256(f"{folder.name}/{path}".encode()).hexdigest()}
        for name, values in virtual.tables().items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            content = buffer.getvalue()
            (folder / split / name).write_bytes(content)
            entries[f"{split}/{name}"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        splits[split] = {"documents": virtual.documents, "tokens": virtual.tokens, "bytes": virtual.bytes}
    tokenizer = {"fingerprint": "synthetic", "vocab_size": VOCABULARY, "bos": 0, "eos": 1}
    skipped = {"count": 0, "first": []}
    contents = {"format": FORMAT, "tokenizer": tokenizer, "dtype": "uint32", "splits": splits, "skipped": skipped}
    write_manifest(folder, contents | {"files": entries})


def source_groups(rows: int, sources: int, length: int) -> list[int]:
    """Groups of each source, the last with about three times those of the first, of at least so many rows in all."""
    whole = -(-rows * (length - 1) // TOKENS)
    sizes = np.linspace(1, 3, sources)
    groups = np.maximum(1, sizes / sizes.sum() * whole).astype(int)
    groups[-1] += max(0, whole - int(groups.sum()))
    return groups.tolist()


def write_corpus(folder: Path, groups: list[int]) -> None:
    """Writes a source for each number of groups."""
    for number, count in enumerate(groups):
        write_source(folder / source_name(number), synthetic_files(count, number))


def open_corpus(folder: Path, groups: list[int]) -> dict[str, Shards]:
    """Opens what ``write_corpus`` wrote, by the code that opens every folder."""
    return {
        source_name(number): open_shards(folder / source_name(number), synthetic_files(count, number))
        for number, count in enumerate(groups)
    }


def source_name(number: int) -> str:
    """Name of a source."""
    return f"source-{number:02d}"
