"""The first pass: each part's documents are hashed, signed and sorted by the keys of their bands."""

from __future__ import annotations

import array
from collections.abc import Iterator
import contextlib
import importlib
import json
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from k2jax.data.duplicates.part_files import DOCUMENT, key_of, making_folder
from k2jax.data.duplicates.settings import MOST_WORDS, PERMUTATIONS, DuplicateSettings
from k2jax.data.duplicates.shingles import mixed, shingles
from k2jax.data.duplicates.words import HashedTexts, batches, hash_words
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic

BLOCK = 1 << 16
"""Documents that are sorted together, into runs on disk."""
VERSION = 1
"""Of the files of this folder; raised when the same documents give other ones."""
_SEED = 42


class DocumentPart(Protocol):
    """A portion of the documents, such as a file; it can be sent to other processes and is cheap to read again.

    Attributes:
        key: of its content: parts with one key hold the same documents in the same order.
        name: of the file that its attributes are written to.
    """

    key: str
    name: str

    def read(self) -> Iterator[tuple[str, str]]:
        """Names and texts of the documents, always in the same order."""


def signatures(hashes: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """MinHash signatures of sets of 64-bit hashes, in which repetitions do not matter.

    Args:
        hashes: uint64, those of one set after those of the other.
        ends: where each set ends.

    Returns:
        uint32 ``[sets, PERMUTATIONS]``; the values are part of what is on disk, which is why rensa is pinned.

    Raises:
        UserError: rensa is not installed.
    """
    try:
        minhash = importlib.import_module("rensa").RMinHash
    except ImportError:
        raise UserError('near duplicates need rensa, which is not installed: pip install "k2jax[prepare]"') from None
    offsets = np.concatenate([[0], ends]).astype(np.uint64)
    matrix = minhash.digest_matrix_from_flat_token_hashes(hashes, offsets, PERMUTATIONS, _SEED)
    values = b"".join([array.array("I", row).tobytes() for row in matrix.to_rows()])
    return np.frombuffer(values, np.uint32).reshape(len(ends), PERMUTATIONS)


def band_keys(signed: np.ndarray, band: int, rows: int) -> np.ndarray:
    """A 64-bit key of one band of signatures: equal where all its rows are."""
    return mixed([signed[:, band * rows + row] for row in range(rows)])


def signed_name(part: DocumentPart, settings: DuplicateSettings) -> str:
    """Name of the folder of a signed part."""
    return key_of("signed", VERSION, part.key, settings.rows)


def sign_part(part: DocumentPart, *, folder: Path, settings: DuplicateSettings) -> dict[str, Any]:
    """Hashes and signs the documents of a part, unless that was done before.

    Memory is that of one document's words or of a block's signatures, whatever is larger.

    Args:
        part: to read.
        folder: of all signed parts.
        settings: of which the number of bands is part of the files.

    Returns:
        ``blocks``: numbers of documents and of those with signatures, for each run.
    """
    target = folder / signed_name(part, settings)
    if not target.is_dir():
        with making_folder(target) as temporary, _PartWriter(temporary, settings) as writer:
            for batch in batches(part.read()):
                writer.add(batch)
            writer.finish()
    return json.loads((target / "part.json").read_text())


def digests(texts: HashedTexts, raw: list[str]) -> np.ndarray:
    """128-bit hashes of the words of texts, uint64 ``[D, 2]``; of a text without words, of its characters."""
    found = [
        xxhash.xxh3_128_digest(texts.words[begin:end])
        if end > begin
        else xxhash.xxh3_128_digest(b"raw:" + raw[number].encode("utf-8", "replace"), seed=1)
        for number, (begin, end) in enumerate(texts.spans())
    ]
    return np.frombuffer(b"".join(found), "<u8").reshape(-1, 2)


class _PartWriter(contextlib.ExitStack):
    """Writes the files of a part, block by block."""

    def __init__(self, folder: Path, settings: DuplicateSettings):
        super().__init__()
        self._folder, self._settings = folder, settings
        names = ("documents", "signatures", "ids", "keys", "order")
        self._files = {name: self.enter_context((folder / f"{name}.bin").open("wb")) for name in names}
        self._blocks: list[list[int]] = []
        self._documents: list[np.ndarray] = []
        self._signed: list[np.ndarray] = []
        self._count = self._id_end = 0

    def add(self, batch: list[tuple[str, str]]) -> None:
        """Adds documents in their order."""
        texts = [text for _, text in batch]
        hashed = hash_words(texts, digits=True)
        counts = np.diff(hashed.ends, prepend=0)
        documents = np.zeros(len(batch), DOCUMENT)
        documents["words"], documents["characters"] = counts, [len(text) for text in texts]
        documents["digest"] = digests(hashed, texts)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashed.words * hashed.digits, dtype=np.uint64)])
        documents["numbers"] = np.diff(sums[np.concatenate([[0], hashed.ends])])
        names = [name.encode("utf-8", "replace") for name, _ in batch]
        documents["id_end"] = self._id_end + np.cumsum([len(name) for name in names])
        self._id_end = int(documents["id_end"][-1])
        self._files["ids"].write(b"".join(names))
        if counts.max() > MOST_WORDS:  # it is alone in its batch
            hashed = HashedTexts(hashed.words[:0], np.zeros(1, np.int64), hashed.digits[:0])
        self._documents.append(documents)
        self._signed.append(signatures(*shingles(hashed)))
        self._count += len(batch)
        if self._count >= BLOCK:
            self._write_block()

    def finish(self) -> None:
        """Writes the last block and what the part holds."""
        if self._count:
            self._write_block()
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure could keep the folder's name and lose the content
        write_atomic(self._folder / "part.json", json.dumps({"blocks": self._blocks}))

    def _write_block(self) -> None:
        documents, signed = np.concatenate(self._documents), np.concatenate(self._signed)
        compared = np.flatnonzero((documents["words"] > 0) & (documents["words"] <= MOST_WORDS))
        self._write_run(documents["digest"][:, 0], np.arange(len(documents)))
        for band in range(self._settings.bands):
            self._write_run(band_keys(signed, band, self._settings.rows)[compared], compared)
        self._files["documents"].write(documents.tobytes())
        self._files["signatures"].write(signed.tobytes())
        self._blocks.append([len(documents), len(compared)])
        self._documents, self._signed, self._count = [], [], 0

    def _write_run(self, keys: np.ndarray, order: np.ndarray) -> None:
        """Writes keys in their order, and the documents of the block that have them."""
        by_key = np.argsort(keys, kind="stable")
        self._files["keys"].write(keys[by_key].tobytes())
        self._files["order"].write(order[by_key].astype(np.uint32).tobytes())
