"""Tokenised documents on disk: two splits, each one continuous stream of tokens.

A folder holds ``manifest.json`` and, for ``train`` and ``held_out``, ``tokens-00000.bin`` ... (uint16 or uint32, all
of one length but the last), ``offsets.npy`` (int64 ``[documents + 1]``, start of each document in the stream),
``bytes.npy`` (uint32 ``[documents]``, UTF-8 length) and ``blocks.npy`` (uint32, CRC-32 of every block of every token
file). A document is ``[BOS] tokens [EOS]``.

Nothing is believed unchecked: the manifest holds its own checksum and those of the three indices, which are read whole
at opening, and a block of tokens is compared with its checksum when it is first read.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import io
from pathlib import Path

import numpy as np

from k2jax.data.blocks import BlockFile, block_count
from k2jax.data.cache import damaged, unreadable
from k2jax.data.manifest import HELD_OUT, NAME, TRAIN, read_manifest
from k2jax.data.split_writer import BLOCKS
from k2jax.errors import UserError

VERIFY_BELOW = 256 * 2**20  # the blocks of data below this size are all checked at opening [bytes]


class TokenStream:
    """One split: its indices in memory, its tokens on disk.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, every document's BOS and EOS included.
        bytes: UTF-8 bytes of the documents.
        targets: number of predicted tokens: all but the first of each document.
        offsets: int64 ``[documents + 1]``, start of each document.
        document_bytes: uint32 ``[documents]``, UTF-8 length of each document.
    """

    def __init__(self, folder: Path, split: str, manifest: dict):
        """Reads and checks the indices of a split, and opens its token files.

        Args:
            folder: the folder of shards.
            split: ``train`` or ``held_out``.
            manifest: the folder's manifest: its ``dtype``, ``splits`` and ``files``.

        Raises:
            UserError: if a file is missing, truncated, or at odds with the manifest.
        """
        counts, files = manifest["splits"][split], manifest["files"]
        self.documents, self.tokens, self.bytes = counts["documents"], counts["tokens"], counts["bytes"]
        self.targets = self.tokens - self.documents
        self._dtype = np.dtype(manifest["dtype"])
        names = sorted(name for name in files if name.startswith(f"{split}/tokens-"))
        sizes = [files[name]["bytes"] for name in names]
        index = _Indices(folder, split, files)
        self.offsets = index.read("offsets.npy", np.int64, self.documents + 1)
        self.document_bytes = index.read("bytes.npy", np.uint32, self.documents)
        sums = index.read(BLOCKS, np.uint32, sum(map(block_count, sizes)))
        if sum(sizes) != self.tokens * self._dtype.itemsize or any(size % self._dtype.itemsize for size in sizes):
            raise index.contradiction("tokens-*.bin")
        if self.offsets[0] or self.offsets[-1] != self.tokens or (np.diff(self.offsets) <= 0).any():
            raise index.contradiction("offsets.npy")
        if self.document_bytes.sum(dtype=np.uint64) != self.bytes:
            raise index.contradiction("bytes.npy")
        self._starts = (np.cumsum([0, *sizes]) // self._dtype.itemsize).tolist()
        ends = np.cumsum([block_count(size) for size in sizes])[:-1]
        self._shards = [
            BlockFile(folder / name, size, part, folder)
            for name, size, part in zip(names, sizes, np.split(sums, ends), strict=True)
        ]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copies tokens ``start`` to ``stop`` of the stream, int32 ``[stop - start]``.

        Every token is in the vocabulary without a look at its value: the ids were checked when they were written, and
        the checksums say that they are still the same.

        Raises:
            UserError: if a file of tokens is found damaged; the message names it and the folder to delete.
        """
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop)
        arrays = [self._read_shard(i, start, stop) for i in range(first, last)]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def check(self) -> None:
        """Reads all tokens; raises UserError as ``read`` does."""
        for shard in self._shards:
            shard.check()

    def _read_shard(self, shard: int, start: int, stop: int) -> np.ndarray:
        begin, end = max(start, self._starts[shard]), min(stop, self._starts[shard + 1])
        size, origin = self._dtype.itemsize, self._starts[shard]
        data = self._shards[shard].read((begin - origin) * size, (end - origin) * size)
        return np.frombuffer(data, self._dtype).astype(np.int32)


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

    @property
    def contents(self) -> dict[str, dict]:
        """What identifies the contents: sizes and checksums of the files.

        The checksums of blocks follow from the contents. They are left out, so that their size may change.
        """
        files = self.manifest["files"]
        return {path: entry for path, entry in files.items() if Path(path).name != BLOCKS}


def open_shards(folder: Path) -> Shards:
    """Opens a finished folder and checks all of it but the tokens, and for small data the tokens as well.

    Raises:
        UserError: if a file is missing, truncated or altered; the message names the file and the folder to delete.
    """
    manifest = read_manifest(folder)
    train, held_out = (TokenStream(folder, split, manifest) for split in (TRAIN, HELD_OUT))
    if sum(entry["bytes"] for entry in manifest["files"].values()) < VERIFY_BELOW:
        train.check()
        held_out.check()
    return Shards(manifest, train, held_out)


@dataclasses.dataclass(frozen=True)
class _Indices:
    """The indices of a split: arrays that are read whole, and compared with the manifest's entries of them."""

    folder: Path
    split: str
    files: dict

    def read(self, name: str, dtype: type, length: int) -> np.ndarray:
        """Reads one index into memory."""
        path, entry = self.folder / self.split / name, self.files.get(f"{self.split}/{name}")
        if entry is None:
            raise self.contradiction(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error, self.folder) from None
        if len(content) != entry["bytes"]:
            raise damaged(path, f"{len(content)} bytes long instead of {entry['bytes']}", self.folder)
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise damaged(path, "altered (its sha256 is not the manifest's)", self.folder)
        values = np.load(io.BytesIO(content))
        if values.dtype != dtype or values.shape != (length,):
            raise self.contradiction(name)
        return values

    def contradiction(self, name: str) -> UserError:
        """The error for a manifest that says something else than the files."""
        return damaged(self.folder / NAME, f"at odds with {self.split}/{name}", self.folder)
