"""Tokenised documents on disk, as they are read: two splits, each one long stream of tokens.

A folder holds ``manifest.json`` and, for ``train`` and ``held_out``, ``tokens-00000.bin`` ... (uint16 or uint32, all
of one length but the last), ``offsets.npy`` (int64 ``[documents + 1]``, where each document starts in the stream) and
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
VERIFY_BELOW = 256 * 2**20  # data up to this size are hashed at every open [bytes]


class TokenStream:
    """One split, memory-mapped.

    Attributes:
        documents, tokens, bytes: how many it holds; tokens include every document's bos and eos, bytes are UTF-8.
        targets: tokens that a model is asked to predict: all but each document's first.
        offsets: int64 ``[documents + 1]``, where each document starts.
        document_bytes: uint32 ``[documents]``.
    """

    def __init__(self, folder: Path, dtype: str, counts: dict, shards: list[str]):
        self.documents, self.tokens, self.bytes = counts["documents"], counts["tokens"], counts["bytes"]
        self.targets = self.tokens - self.documents
        self.offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self.document_bytes = np.load(folder / "bytes.npy", mmap_mode="r")
        self._shards = [np.memmap(folder / name, dtype=dtype, mode="r") for name in shards]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards]).tolist()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop`` of the stream, int32 ``[stop - start]``, copied."""
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop)
        parts = [
            self._shards[i][max(0, start - self._starts[i]) : stop - self._starts[i]].astype(np.int32)
            for i in range(first, last)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclasses.dataclass(frozen=True)
class Shards:
    """A source, tokenised: what its manifest says, and its splits."""

    manifest: dict
    train: TokenStream
    held_out: TokenStream


def open_shards(folder: Path) -> Shards:
    """Opens a finished folder, checking the size of every file and, for small data, its sha256.

    Raises:
        UserError: when a file is missing, truncated or altered; it names the file and the folder to delete.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        found, files = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(folder / "manifest.json", "missing or not readable", folder) from None
    if found != FORMAT:
        raise _damaged(folder / "manifest.json", f"of format {found}, not {FORMAT},", folder)
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


def _damaged(path: Path, how: str, folder: Path) -> UserError:
    return UserError(f"{path} is {how}: delete the folder {folder} to have it built again")
