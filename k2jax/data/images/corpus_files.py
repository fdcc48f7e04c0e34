"""The files of a measured source: lines of records, sizes, grids of chunks, and the manifest."""

from __future__ import annotations

from collections.abc import Iterator
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from k2jax.data.images.measuring import MeasuredConversation
from k2jax.data.manifest import ASSISTANT, FORMAT, HELD_OUT, TRAIN, shard_dtype, write_manifest
from k2jax.data.sources import CorruptRecords
from k2jax.data.split import adjusted_threshold, threshold_for
from k2jax.errors import UserError
from k2jax.files.array_file import write_array
from k2jax.text.tokenizer import Tokenizer

RECORDS, SIZES, GRIDS = "records.jsonl", "sizes.npy", "grids.npy"
_COLUMNS = ("tokens", "patches", "targets", "bytes", "first_byte", "chunks", "held_out")
_SIZES = np.dtype([(name, np.int64) for name in _COLUMNS])


def write_corpus(
    folder: Path,
    name: str,
    measured: Iterator[MeasuredConversation],
    *,
    held_out: float,
    report: CorruptRecords,
    tokenizer: Tokenizer,
) -> None:
    """Writes records, sizes and grids, decides the split, and writes the manifest.

    Args:
        folder: is empty.
        name: of the source, for messages.
        measured: its conversations.
        held_out: share of conversations of the held-out split, where they are not of a split already.
        report: what was skipped.
        tokenizer: of the conversations.

    Raises:
        UserError: there are too few conversations for two splits.
    """
    rows: list[tuple[int, ...]] = []
    digests: list[int] = []
    known: list[bool | None] = []
    grids: list[np.ndarray] = []
    contents = hashlib.sha256()
    with (folder / RECORDS).open("wb") as file:
        for each in measured:
            own = np.array(each.grids, np.int32).reshape(-1, 3)
            patches = int(own.prod(1).sum())
            rows.append((each.tokens, patches, each.targets, len(each.line), file.tell(), len(own), 0))
            digests.append(each.digest)
            known.append(each.held_out)
            grids.append(own)
            contents.update(each.sha256)
            file.write(each.line + b"\n")
    if len(set(digests)) < 2:
        why = f"; {report.count} records were skipped, the first in {report.shown[0]}" if report.count else ""
        what = "one conversation, or all about the same images" if digests else "no conversation"
        raise UserError(f"source {name!r} has {what}: training and validation need at least two{why}")
    threshold = adjusted_threshold(threshold_for(held_out), min(digests), max(digests))
    sizes = np.array(rows, _SIZES)
    pairs = zip(digests, known, strict=True)
    sizes["held_out"] = [digest < threshold if told is None else told for digest, told in pairs]
    arrays = {SIZES: sizes, GRIDS: np.concatenate(grids)}
    manifest = {
        "format": FORMAT,
        "tokenizer": {key: getattr(tokenizer, key) for key in ("fingerprint", "vocab_size", "bos", "eos")},
        "dtype": shard_dtype(tokenizer.vocab_size),
        "splits": {split: _counts(sizes[sizes["held_out"] == (split == HELD_OUT)]) for split in (TRAIN, HELD_OUT)},
        **report.manifest,
        "files": {
            **{name: _written_array(folder / name, array) for name, array in arrays.items()},
            RECORDS: _described_file(folder / RECORDS, contents.hexdigest()),
        },
    }
    write_manifest(folder, manifest)


def _written_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    with path.open("wb") as file:
        write_array(file, array)
    return _described_file(path, checksum(array.tobytes()))


def _described_file(path: Path, sha256: str) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256}


def _counts(sizes: np.ndarray) -> dict[str, int]:
    tokens, patches, targets, length = (int(sizes[name].sum()) for name in _COLUMNS[:4])
    return {"documents": len(sizes), "tokens": tokens, "bytes": length, ASSISTANT: targets, "patches": patches}


def checksum(data: bytes) -> str:
    """Sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
