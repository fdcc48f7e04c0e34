"""The indices of a split: what lies where, and which of it is read at opening."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from pathlib import Path

import numpy as np

from k2jax.data.blocks import BLOCKS, READ_AGAIN, BlockFile, BlockSums, block_count
from k2jax.data.cache import damaged, unreadable
from k2jax.data.disk_files import Files
from k2jax.data.manifest import NAME
from k2jax.data.paged.array import FENCES, PAGE, PAGES, MalformedArray, Offsets, PagedArray, fence_numbers
from k2jax.errors import UserError

INDICES = ("offsets.npy", "bytes.npy", BLOCKS)
"""In the order in which the sums of their pages follow one another."""


@dataclasses.dataclass(frozen=True)
class IndexFiles:
    """The indices of a split.

    Attributes:
        folder: the folder of shards.
        split: ``train`` or ``held_out``.
        entries: ``files`` of the manifest.
        files: where they are.
    """

    folder: Path
    split: str
    entries: dict
    files: Files

    def open(self, documents: int, blocks: int) -> tuple[Offsets, PagedArray, PagedArray]:
        """Start of each document, its UTF-8 length, and the checksums of all blocks of tokens.

        Raises:
            UserError: a file is missing, truncated, altered, or at odds with the manifest.
        """
        sums, fences = self._tables()
        offsets = self._array("offsets.npy", sums, lambda file: Offsets(file, documents + 1, fences))
        lengths = self._array("bytes.npy", sums, lambda file: PagedArray(file, np.uint32, documents))
        return offsets, lengths, self._array(BLOCKS, sums, lambda file: PagedArray(file, np.uint32, blocks))

    def contradiction(self, name: str) -> UserError:
        """The error for a manifest that says something else than the files."""
        return damaged(self.folder / NAME, f"at odds with {self.split}/{name}", self.folder)

    def _array(self, name, sums, made):
        """An index whose pages have their part of the sums."""
        size = self._entry(name)["bytes"]
        path = self.folder / self.split / name
        file = BlockFile(path, size, sums[name], self.folder, block=PAGE, files=self.files)
        try:
            return made(file)
        except MalformedArray:
            raise self.contradiction(name) from None

    def _tables(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The sums of all indices' pages, and the fences of the offsets."""
        if f"{self.split}/{PAGES}" not in self.entries:
            return self._made_tables()
        counts = [block_count(self._entry(name)["bytes"], PAGE) for name in INDICES]
        parts = np.split(self._values(PAGES, np.uint32, sum(counts)), np.cumsum(counts)[:-1])
        return dict(zip(INDICES, parts, strict=True)), self._values(FENCES, np.int64, counts[0])

    def _made_tables(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """As ``_tables`` of a folder of an earlier version, whose indices are read whole."""
        found, fences = {}, np.zeros(0, np.int64)
        for name in INDICES:
            content, sums = self._whole(name), BlockSums(PAGE)
            sums.add(content)
            found[name] = np.array(sums.values, np.uint32)
            if name == INDICES[0]:
                offsets = self._loaded(name, content)
                fences = offsets[fence_numbers(len(content), len(offsets))]
        return found, fences

    def _values(self, name: str, dtype: type, length: int) -> np.ndarray:
        """A table that is read whole."""
        values = self._loaded(name, self._whole(name))
        if values.dtype != dtype or values.shape != (length,):
            raise self.contradiction(name)
        return values

    def _loaded(self, name: str, content: bytes) -> np.ndarray:
        try:
            return np.load(io.BytesIO(content))
        except ValueError:
            raise self.contradiction(name) from None

    def _whole(self, name: str) -> bytes:
        """What a file holds, compared with the manifest's entry of it."""
        path, entry = self.folder / self.split / name, self._entry(name)
        try:
            file = self.files.open(path)
            content = file.read(0, file.size)
        except OSError as error:
            raise unreadable(path, error, self.folder) from None
        if len(content) != entry["bytes"]:
            raise damaged(path, f"{len(content)} bytes long instead of {entry['bytes']}", self.folder)
        left = READ_AGAIN
        while hashlib.sha256(content).hexdigest() != entry["sha256"]:
            left -= 1
            if not file.forget(0, file.size) or not left:
                raise damaged(path, "altered (its sha256 is not the manifest's)", self.folder)
            content = file.read(0, file.size)
        return content

    def _entry(self, name: str) -> dict:
        if (entry := self.entries.get(f"{self.split}/{name}")) is None:
            raise self.contradiction(name)
        return entry
