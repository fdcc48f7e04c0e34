"""Writes one split of tokenised documents: shards of tokens, their checksums, and the indices of its documents."""

from __future__ import annotations

from array import array
import hashlib
import os
from pathlib import Path

import numpy as np

from k2jax.data.blocks import BLOCKS, BlockSums
from k2jax.data.paged.array import FENCES, PAGE, PAGES, fence_numbers
from k2jax.files.array_file import write_array


class SplitWriter:
    """Writes one split document by document, and hashes its files.

    Attributes:
        documents: number of documents written so far.
        tokens: number of tokens written so far.
        bytes: UTF-8 bytes of their texts.
    """

    def __init__(self, folder: Path, split: str, dtype: str, tokens_per_shard: int):
        self._folder, self._split, self._dtype, self._per_shard = folder / split, split, dtype, tokens_per_shard
        self._folder.mkdir()
        self._offsets, self._lengths, self._blocks = array("q", [0]), array("I"), array("I")
        self._file = None
        self._files: dict[str, dict] = {}
        self.documents = self.tokens = self.bytes = 0

    def add(self, tokens: np.ndarray, text_bytes: int) -> None:
        """Appends a document.

        Args:
            tokens: integers ``[tokens]``, BOS and EOS included.
            text_bytes: length of the text in UTF-8 [bytes].
        """
        start = 0
        while start < len(tokens):
            if self._file is None:
                self._open_next()
            free = self._per_shard - self.tokens % self._per_shard
            written = tokens[start : start + free].astype(self._dtype)
            data = written.tobytes()
            self._file.write(data)
            self._digest.update(data)
            self._sums.add(data)
            start, self.tokens = start + len(written), self.tokens + len(written)
            if self.tokens % self._per_shard == 0:
                self._close()
        self._offsets.append(self.tokens)
        self._lengths.append(text_bytes)
        self.documents, self.bytes = self.documents + 1, self.bytes + text_bytes

    def finish(self) -> dict[str, dict]:
        """Writes the indices and checksums; returns the size and the sha256 of every file by its path in the folder."""
        if self._file is not None:
            self._close()
        indices = {
            "offsets.npy": (self._offsets, np.int64),
            "bytes.npy": (self._lengths, np.uint32),
            BLOCKS: (self._blocks, np.uint32),
        }
        pages = array("I")
        for name, (values, dtype) in indices.items():
            sums = BlockSums(PAGE)
            sums.add(self._save(name, np.array(values, dtype)))
            pages += sums.values
        self._save(PAGES, np.array(pages, np.uint32))
        size = self._files[f"{self._split}/offsets.npy"]["bytes"]
        self._save(FENCES, np.array(self._offsets, np.int64)[fence_numbers(size, len(self._offsets))])
        return self._files

    def counts(self) -> dict[str, int]:
        """Numbers of documents, tokens and bytes written."""
        return {"documents": self.documents, "tokens": self.tokens, "bytes": self.bytes}

    def _open_next(self) -> None:
        name = f"tokens-{self.tokens // self._per_shard:05d}.bin"
        self._file, self._digest, self._sums = (self._folder / name).open("wb"), hashlib.sha256(), BlockSums()

    def _close(self) -> None:
        flush_to_disk(self._file)
        self._record(Path(self._file.name).name, self._file.tell(), self._digest.hexdigest())
        self._blocks += self._sums.values
        self._file.close()
        self._file = None

    def _save(self, name: str, values: np.ndarray) -> bytes:
        """Writes and records an array; returns what the file holds."""
        with (self._folder / name).open("wb") as file:
            write_array(file, values)
            flush_to_disk(file)
        content = (self._folder / name).read_bytes()
        self._record(name, len(content), hashlib.sha256(content).hexdigest())
        return content

    def _record(self, name: str, size: int, digest: str) -> None:
        self._files[f"{self._split}/{name}"] = {"bytes": size, "sha256": digest}


def flush_to_disk(file) -> None:
    """Forces a file's data to disk, so that no crash of the machine after a rename leaves an empty file behind."""
    file.flush()
    os.fsync(file.fileno())
