"""Tokenises a source once, in a streaming pass, into the folder that ``shards`` reads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
import functools
import hashlib
import json
import os
from pathlib import Path
import shutil
import time

import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.cache import cache_root, get_or_build, key_of
from k2jax.data.measure import TextMeasure
from k2jax.data.shards import FORMAT, HELD_OUT, TRAIN, Shards, open_shards
from k2jax.data.sources import CorruptRecords, describe, documents
from k2jax.data.split import adjusted_threshold, document_hash, threshold_for
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer

TOKENS_PER_SHARD = 64 * 2**20
BATCH_BYTES = 4 * 2**20  # text encoded at a time: enough to keep the cores busy, little to hold
LOG_SECONDS = 5.0
Log = Callable[[str], None]


def prepare_shards(
    name: str,
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    builder: bool = True,
    wait_seconds: float = 3600.0,
    log: Log | None = None,
) -> Shards:
    """The tokenised shards of the source ``name``, from the cache or built now.

    Args:
        name: a key of ``config.sources``.
        config: which source, what is held out, what to do with corrupt records, where the cache is.
        tokenizer: turns its documents into tokens.
        builder: whether this process may build; the others wait.
        wait_seconds: how long they wait [s].
        log: gets a line now and then.

    Raises:
        UserError: for anything a user can mend: sources, corrupt records, cache, damaged shards.
    """
    source, log = config.sources[name], log or (lambda line: None)
    threshold = threshold_for(config.held_out)
    described = {
        "format": FORMAT,
        "source": describe(name, source),
        "held_out": config.held_out,
        "tokenizer": [tokenizer.fingerprint, tokenizer.bos, tokenizer.eos],
    }
    folder = cache_root(config.cache_dir) / "shards" / f"{source.kind}-{key_of(described)}"
    report = CorruptRecords(config.on_corrupt, log)
    build = functools.partial(
        _build, name=name, source=source, report=report, threshold=threshold, tokenizer=tokenizer, log=log
    )
    shards = open_shards(get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds))
    skipped = shards.manifest["skipped"]
    if skipped["count"] and config.on_corrupt == "fail":
        raise UserError(
            f"source {name!r} has {skipped['count']} corrupt records, the first in {skipped['first'][0]}; "
            "mend them, or set data.on_corrupt=skip"
        )
    return shards


def _build(
    folder: Path,
    name: str,
    source: SourceConfig,
    report: CorruptRecords,
    threshold: int,
    tokenizer: Tokenizer,
    log: Log,
) -> None:
    """Fills a folder; goes over the source a second time when a small one left a split empty."""
    first = _one_pass(folder, name, source, report, threshold, tokenizer, log)
    lowest, highest = first["hashes"]
    if lowest == highest:
        what = "one document" if first["documents"] == 1 else f"{first['documents']} documents, all with the same text"
        raise UserError(
            f"source {name!r} has {what}: training and validation need at least two, so cut the text into several files"
        )
    adjusted = adjusted_threshold(threshold, lowest, highest)
    if adjusted != threshold:
        shutil.rmtree(folder)
        folder.mkdir()
        first = _one_pass(folder, name, source, CorruptRecords(), adjusted, tokenizer, log)
    manifest = first["manifest"] | {"split_threshold": str(adjusted)}
    with (folder / "manifest.json").open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        _flush(file)
    train, held_out = manifest["splits"][TRAIN], manifest["splits"][HELD_OUT]
    log(f"{name}: {train['documents']} documents, {train['tokens']} tokens; held out {held_out['documents']} documents")


def _one_pass(
    folder: Path,
    name: str,
    source: SourceConfig,
    report: CorruptRecords,
    threshold: int,
    tokenizer: Tokenizer,
    log: Log,
) -> dict:
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    writers = {split: SplitWriter(folder, split, dtype, TOKENS_PER_SHARD) for split in (TRAIN, HELD_OUT)}
    measure, lowest, highest, said = TextMeasure(), 2**64, -1, time.monotonic()
    for texts in _batches(documents(name, source, report)):
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            raw = text.encode()
            code = document_hash(raw)
            lowest, highest = min(lowest, code), max(highest, code)
            if code < threshold:
                measure.add(raw)
            split = HELD_OUT if code < threshold else TRAIN
            writers[split].add(np.concatenate([[tokenizer.bos], ids, [tokenizer.eos]]), len(raw))
        if time.monotonic() > said + LOG_SECONDS:
            said = time.monotonic()
            log(f"tokenising {name}: {sum(w.bytes for w in writers.values()) / 1e6:.0f} MB")
    files = {}
    for writer in writers.values():
        files |= writer.finish()
    splits = {split: writer.counts() for split, writer in writers.items()}
    if splits[HELD_OUT]["documents"]:
        splits[HELD_OUT] |= measure.finish()
    manifest = {
        "format": FORMAT,
        "source": {key: getattr(source, key) for key in ("kind", "path", "field", "subset", "split", "max_documents")},
        "tokenizer": {key: getattr(tokenizer, key) for key in ("fingerprint", "vocab_size", "bos", "eos")},
        "dtype": dtype,
        "splits": splits,
        "skipped": {"count": report.count, "first": report.shown},
        "files": files,
    }
    return {"manifest": manifest, "hashes": (lowest, highest), "documents": sum(w.documents for w in writers.values())}


def _batches(found: Iterator[tuple[str, str]]) -> Iterator[list[str]]:
    texts, size = [], 0
    for _, text in found:
        texts.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


class SplitWriter:
    """Writes one split, a document at a time, hashing as it goes.

    Attributes:
        documents, tokens, bytes: written so far.
    """

    def __init__(self, folder: Path, split: str, dtype: str, tokens_per_shard: int):
        self._folder, self._split, self._dtype, self._per_shard = folder / split, split, dtype, tokens_per_shard
        self._folder.mkdir()
        self._offsets, self._lengths = array("q", [0]), array("I")
        self._file = None
        self._files: dict[str, dict] = {}
        self.documents = self.tokens = self.bytes = 0

    def add(self, tokens: np.ndarray, text_bytes: int) -> None:
        """Appends a document: its tokens ``[tokens]``, bos and eos included, and its length in UTF-8 bytes."""
        at = 0
        while at < len(tokens):
            if self._file is None:
                self._open_next()
            room = self._per_shard - self.tokens % self._per_shard
            data = tokens[at : at + room].astype(self._dtype).tobytes()
            self._file.write(data)
            self._digest.update(data)
            written = len(tokens[at : at + room])
            at, self.tokens = at + written, self.tokens + written
            if self.tokens % self._per_shard == 0:
                self._close()
        self._offsets.append(self.tokens)
        self._lengths.append(text_bytes)
        self.documents, self.bytes = self.documents + 1, self.bytes + text_bytes

    def finish(self) -> dict[str, dict]:
        """Writes the indices; returns size and sha256 of every file by its path in the folder."""
        if self._file is not None:
            self._close()
        indices = {"offsets.npy": (self._offsets, np.int64), "bytes.npy": (self._lengths, np.uint32)}
        for name, (values, dtype) in indices.items():
            with (self._folder / name).open("wb") as file:
                np.save(file, np.array(values, dtype))
                _flush(file)
            content = (self._folder / name).read_bytes()
            self._record(name, len(content), hashlib.sha256(content).hexdigest())
        return self._files

    def counts(self) -> dict[str, int]:
        """How many documents, tokens and bytes were written."""
        return {"documents": self.documents, "tokens": self.tokens, "bytes": self.bytes}

    def _open_next(self) -> None:
        name = f"tokens-{self.tokens // self._per_shard:05d}.bin"
        self._file, self._digest = (self._folder / name).open("wb"), hashlib.sha256()

    def _close(self) -> None:
        _flush(self._file)
        self._record(Path(self._file.name).name, self._file.tell(), self._digest.hexdigest())
        self._file.close()
        self._file = None

    def _record(self, name: str, size: int, digest: str) -> None:
        self._files[f"{self._split}/{name}"] = {"bytes": size, "sha256": digest}


def _flush(file) -> None:
    """Makes sure that a crash of the machine after the rename cannot leave an empty file behind."""
    file.flush()
    os.fsync(file.fileno())
