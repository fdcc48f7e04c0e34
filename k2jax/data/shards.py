"""Tokenised documents on disk: two splits, each one continuous stream of tokens.

A folder holds ``manifest.json`` and, for ``train`` and ``held_out``, ``tokens-00000.bin`` ... (uint16 or uint32, all
of one length but the last), ``offsets.npy`` (int64 ``[documents + 1]``, start of each document in the stream) and
``bytes.npy`` (uint32 ``[documents]``, UTF-8 length). A document is ``[BOS] tokens [EOS]``.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

from k2jax.errors import UserError

FORMAT = 1
TRAIN, HELD_OUT = "train", "held_out"
VERIFY_BELOW = 256 * 2**20  # data below this size are hashed whenever they are opened [bytes]


class TokenStream:
    """One split, memory-mapped.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, every document's BOS and EOS included.
        bytes: UTF-8 bytes of the documents.
        targets: number of predicted tokens: all but the first of each document.
        offsets: int64 ``[documents + 1]``, start of each document.
        document_bytes: uint32 ``[documents]``, UTF-8 length of each document.
    """

    def __init__(self, folder: Path, dtype: str, counts: dict, shards: list[str]):
        self.documents, self.tokens, self.bytes = counts["documents"], counts["tokens"], counts["bytes"]
        self.targets = self.tokens - self.documents
        self.offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self.document_bytes = np.load(folder / "bytes.npy", mmap_mode="r")
        self._shards = [np.memmap(folder / name, dtype=dtype, mode="r") for name in shards]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards]).tolist()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copies tokens ``start`` to ``stop`` of the stream, int32 ``[stop - start]``."""
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop)
        arrays = [
            self._shards[i][max(0, start - self._starts[i]) : stop - self._starts[i]].astype(np.int32)
            for i in range(first, last)
        ]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclasses.dataclass(frozen=True)
class Shards:
    """A tokenised source.

    Attributes:
        manifest: contents of its ``manifest.json``.
        train: training split.
        held_out: validation split.
    """

    manifest: dict
    train: TokenStream
    held_out: TokenStream


def open_shards(folder: Path) -> Shards:
    """Opens a finished folder, checking the size of every file and, for small data, its sha256.

    Raises:
        UserError: if a file is missing, truncated or altered; the message names the file and the folder to delete.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        format_number, files = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(folder / "manifest.json", "missing or not readable", folder) from None
    if format_number != FORMAT:
        raise _damaged(folder / "manifest.json", f"of format {format_number}, not {FORMAT},", folder)
    small = sum(entry["bytes"] for entry in files.values()) < VERIFY_BELOW
    for name, entry in files.items():
        _check_file(folder, name, entry, read=small)
    return Shards(manifest, *(_open_split(folder, split, manifest) for split in (TRAIN, HELD_OUT)))


def _open_split(folder: Path, split: str, manifest: dict) -> TokenStream:
    shards = sorted(Path(name).name for name in manifest["files"] if name.startswith(f"{split}/tokens-"))
    return TokenStream(folder / split, manifest["dtype"], manifest["splits"][split], shards)


def _check_file(folder: Path, name: str, entry: dict, read: bool) -> None:
    path = folder / name
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        raise _damaged(path, "missing", folder)
    if size != entry["bytes"]:
        raise _damaged(path, f"{size} bytes long instead of {entry['bytes']}", folder)
    if read:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry["sha256"]:
            raise _damaged(path, "altered (its sha256 is not the manifest's)", folder)


def _damaged(path: Path, damage: str, folder: Path) -> UserError:
    return UserError(f"{path} is {damage}: delete the folder {folder} to have it built again")
