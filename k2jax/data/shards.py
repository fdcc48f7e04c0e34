"""Tokenised documents on disk: two splits, each one continuous stream of tokens.

A folder holds ``manifest.json`` and, for ``train`` and ``held_out``, ``tokens-00000.bin`` ... (uint16 or uint32, all
of one length but the last), ``offsets.npy`` (int64 ``[documents + 1]``, start of each document in the stream),
``bytes.npy`` (uint32 ``[documents]``, UTF-8 length) and ``blocks.npy`` (uint32, CRC-32 of every block of every token
file). A document is ``[BOS] tokens [EOS]``.

Nothing is believed unchecked: the manifest holds its own checksum and that of a table of checksums of the indices'
pages. A page of an index, or a block of tokens, is compared with its checksum when it is first read; of small data all
are at opening.
"""

from __future__ import annotations

from array import array
import bisect
import dataclasses
import functools
import itertools
from pathlib import Path

import numpy as np

from k2jax.data.blocks import BLOCKS, BlockFile, block_count
from k2jax.data.cache import damaged, unreadable
from k2jax.data.disk_files import DISK, Files
from k2jax.data.in_use import mark_in_use
from k2jax.data.index_files import IndexFiles
from k2jax.data.manifest import HELD_OUT, TRAIN, read_manifest
from k2jax.data.paged.array import FENCES, PAGES, ArrayPart
from k2jax.data.paged.open_files import OPEN
from k2jax.data.stored_files import StoredFiles
from k2jax.files.objects.object_path import ObjectPath

VERIFY_BELOW = 256 * 2**20  # data below this size are checked whole at opening [bytes]
CHECKED_AT_ONCE = 2**20  # values of an index
_DERIVED = (BLOCKS, PAGES, FENCES)


class TokenStream:
    """One split; of its indices and its tokens nothing is read before it is needed.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, every document's BOS and EOS included.
        bytes: UTF-8 bytes of the documents.
        targets: number of predicted tokens: all but the first of each document.
        offsets: int64 ``[documents + 1]``, start of each document.
        document_bytes: uint32 ``[documents]``, UTF-8 length of each document.
    """

    def __init__(self, folder: Path | ObjectPath, split: str, manifest: dict, *, files: Files = DISK):
        """Opens the indices of a split, and looks that its token files are there.

        Args:
            folder: the folder of shards.
            split: ``train`` or ``held_out``.
            manifest: the folder's manifest: its ``dtype``, ``splits`` and ``files``.
            files: where they are.

        Raises:
            UserError: if a file is missing, truncated, or at odds with the manifest.
        """
        counts, entries = manifest["splits"][split], manifest["files"]
        self.documents, self.tokens, self.bytes = counts["documents"], counts["tokens"], counts["bytes"]
        self.targets = self.tokens - self.documents
        self._dtype, self._folder, self._files = np.dtype(manifest["dtype"]), folder, files
        self._names = sorted(name for name in entries if name.startswith(f"{split}/tokens-"))
        self._sizes = [entries[name]["bytes"] for name in self._names]
        blocks = [block_count(size) for size in self._sizes]
        self._index = IndexFiles(folder, split, entries, files)
        self.offsets, self.document_bytes, self._sums = self._index.open(self.documents, sum(blocks))
        if sum(self._sizes) != self.tokens * self._dtype.itemsize or any(n % self._dtype.itemsize for n in self._sizes):
            raise self._index.contradiction("tokens-*.bin")
        if self.offsets[0] or self.offsets[-1] != self.tokens:
            raise self._index.contradiction("offsets.npy")
        self._starts = array("q", itertools.accumulate((n // self._dtype.itemsize for n in self._sizes), initial=0))
        self._first_blocks = array("q", itertools.accumulate(blocks, initial=0))
        self._look(folder / split)
        self._key = OPEN.register(self)

    def __setstate__(self, state: dict) -> None:
        """Another process opens its own files."""
        self.__dict__ |= state | {"_key": OPEN.register(self)}

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copies tokens ``start`` to ``stop`` of the stream, int32 ``[stop - start]``.

        Every token is in the vocabulary without a look at its value: the ids were checked when they were written, and
        the checksums say that they are still the same.

        Raises:
            UserError: if a file of tokens is found damaged; the message names it and the folder to delete.
        """
        arrays = [self._read_shard(i, start, stop) for i in self._shards(start, stop)]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    @property
    def is_stored(self) -> bool:
        """Whether it lies in an object store, and is read by way of this machine's disk."""
        return isinstance(self._files, StoredFiles)

    def fill(self, start: int, stop: int) -> int:
        """Has this machine's disk hold what a row of tokens ``start`` to ``stop`` needs.

        Returns:
            How many chunks of token files were fetched for that, without repetition.

        Raises:
            UserError: the store failed, the disk cannot be written, or an index is damaged.
            FileNotFoundError: an object is gone.
        """
        fetched = sum(self._opened(i).fill(*self._extent(i, start, stop)) for i in self._shards(start, stop))
        if fetched:
            self.offsets.between(start, stop)
        return fetched

    def check(self) -> None:
        """Reads all tokens and indices; raises UserError as ``read`` does."""
        for number in range(len(self._names)):
            self._opened(number).check()
        size = 0
        for start in range(0, self.documents, CHECKED_AT_ONCE):
            if (np.diff(self.offsets[start : start + CHECKED_AT_ONCE + 1]) <= 0).any():
                raise self._index.contradiction("offsets.npy")
            size += int(self.document_bytes[start : start + CHECKED_AT_ONCE].sum(dtype=np.uint64))
        if size != self.bytes:
            raise self._index.contradiction("bytes.npy")

    def _look(self, folder: Path) -> None:
        """Raises UserError where a token file is missing, or of another length."""
        try:
            sizes = self._files.sizes(folder)
        except OSError as error:
            raise unreadable(folder, error, self._folder) from None
        for name, size in zip(self._names, self._sizes, strict=True):
            length = sizes.get(name.rpartition("/")[2])
            if length != size:
                damage = "missing" if length is None else f"{length} bytes long instead of {size}"
                raise damaged(self._folder / name, damage, self._folder)

    def _opened(self, number: int) -> BlockFile:
        """A token file."""
        return OPEN.get(self._key, number, functools.partial(self._open, number))

    def _open(self, number: int) -> BlockFile:
        sums = ArrayPart(self._sums, self._first_blocks[number])
        return BlockFile(self._folder / self._names[number], self._sizes[number], sums, self._folder, files=self._files)

    def _read_shard(self, shard: int, start: int, stop: int) -> np.ndarray:
        data = self._opened(shard).read(*self._extent(shard, start, stop))
        return np.frombuffer(data, self._dtype).astype(np.int32)

    def _shards(self, start: int, stop: int) -> range:
        """The token files of a stretch."""
        return range(bisect.bisect_right(self._starts, start) - 1, bisect.bisect_left(self._starts, stop))

    def _extent(self, shard: int, start: int, stop: int) -> tuple[int, int]:
        """The bytes of a stretch in a token file."""
        begin, end = max(start, self._starts[shard]), min(stop, self._starts[shard + 1])
        size, origin = self._dtype.itemsize, self._starts[shard]
        return (begin - origin) * size, (end - origin) * size


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

        Checksums of blocks and pages follow from the contents. They are left out, so that their size may change.
        """
        files = self.manifest["files"]
        return {path: entry for path, entry in files.items() if Path(path).name not in _DERIVED}


def open_shards(folder: Path | ObjectPath, files: Files = DISK) -> Shards:
    """Opens a finished folder; small data are checked whole.

    Args:
        folder: the folder; one in a store is read by way of this machine's disk.
        files: where the files are that its manifest names.

    Raises:
        UserError: if a file is missing, truncated or altered; the message names the file and the folder to delete.
    """
    manifest = read_manifest(folder)
    if isinstance(folder, ObjectPath):
        files = StoredFiles(folder, manifest["files"])
    train, held_out = (TokenStream(folder, split, manifest, files=files) for split in (TRAIN, HELD_OUT))
    if sum(entry["bytes"] for entry in manifest["files"].values()) < VERIFY_BELOW:
        train.check()
        held_out.check()
    shards = Shards(manifest, train, held_out)
    if isinstance(folder, Path):
        mark_in_use(folder, shards)
    return shards
