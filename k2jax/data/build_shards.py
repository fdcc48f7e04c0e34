"""Tokenises a source once, in a streaming pass, into a folder of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
from pathlib import Path
import shutil
import time

import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.cache import cache_root, get_or_build, key_of
from k2jax.data.manifest import FORMAT, HELD_OUT, TRAIN, shard_dtype, write_manifest
from k2jax.data.measure import TextMeasure
from k2jax.data.shards import Shards, open_shards
from k2jax.data.sources import CorruptRecords, describe, documents
from k2jax.data.split import adjusted_threshold, document_hash, threshold_for
from k2jax.data.split_writer import SplitWriter
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer

TOKENS_PER_SHARD = 64 * 2**20
BATCH_CHARACTERS = 4 * 2**20  # text that is encoded at a time: enough to use all cores, and little memory
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
    """Returns the tokenised shards of a source, from the cache or built now.

    Args:
        name: a key of ``config.sources``.
        config: sources, held-out fraction, treatment of corrupt records, and cache.
        tokenizer: tokenizer of the documents.
        builder: whether this process may build; the others wait.
        wait_seconds: how long they wait [s].
        log: receives lines of progress.

    Raises:
        UserError: if the source or a record is unusable, the cache cannot be written, or shards are damaged.
    """
    source = config.sources[name]
    job = _Job(name, source, tokenizer, log or (lambda line: None))
    threshold = threshold_for(config.held_out)
    described = {
        "format": FORMAT,
        "source": describe(name, source),
        "held_out": config.held_out,
        "tokenizer": [tokenizer.fingerprint, tokenizer.bos, tokenizer.eos],
    }
    folder = cache_root(config.cache_dir) / "shards" / f"{source.kind}-{key_of(described)}"
    report = CorruptRecords(config.on_corrupt, job.log)

    def build(folder: Path) -> None:
        _build_folder(folder, job, report, threshold)

    shards = open_shards(get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds))
    skipped = shards.manifest["skipped"]
    if skipped["count"] and config.on_corrupt == "fail":
        raise UserError(
            f"source {name!r} has {skipped['count']} corrupt records, the first in {skipped['first'][0]}; "
            "repair them, or set data.on_corrupt=skip"
        )
    return shards


@dataclasses.dataclass(frozen=True)
class _Job:
    """A source to tokenise, and where to log progress."""

    name: str
    source: SourceConfig
    tokenizer: Tokenizer
    log: Log


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Result of one pass over a source: its manifest, the range of its documents' hashes, and their number."""

    manifest: dict
    lowest: int
    highest: int
    documents: int


def _build_folder(folder: Path, job: _Job, report: CorruptRecords, threshold: int) -> None:
    """Fills a folder; reads a small source a second time if the first pass left a split empty."""
    result = _tokenise(folder, job, report, threshold)
    if result.lowest == result.highest:
        what = "one document" if result.documents == 1 else f"{result.documents} documents, all with the same text"
        raise UserError(
            f"source {job.name!r} has {what}: training and validation need at least two, so cut the text into several "
            "files"
        )
    adjusted = adjusted_threshold(threshold, result.lowest, result.highest)
    if adjusted != threshold:
        shutil.rmtree(folder)
        folder.mkdir()
        result = _tokenise(folder, job, CorruptRecords(), adjusted)
    manifest = result.manifest | {"split_threshold": str(adjusted)}
    write_manifest(folder, manifest)
    train, held_out = manifest["splits"][TRAIN], manifest["splits"][HELD_OUT]
    counts = f"{train['documents']} documents, {train['tokens']} tokens; held out {held_out['documents']} documents"
    job.log(f"{job.name}: {counts}")


def _tokenise(folder: Path, job: _Job, report: CorruptRecords, threshold: int) -> _Pass:
    """Writes both splits in one pass over the source."""
    tokenizer = job.tokenizer
    dtype = shard_dtype(tokenizer.vocab_size)
    writers = {split: SplitWriter(folder, split, dtype, TOKENS_PER_SHARD) for split in (TRAIN, HELD_OUT)}
    measure, lowest, highest, last_log = TextMeasure(), 2**64, -1, time.monotonic()
    for texts in _batches(documents(job.name, job.source, report)):
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            raw = text.encode()
            digest = document_hash(raw)
            lowest, highest = min(lowest, digest), max(highest, digest)
            if digest < threshold:
                measure.add(raw)
            split = HELD_OUT if digest < threshold else TRAIN
            writers[split].add(_document(job, ids), len(raw))
        if time.monotonic() > last_log + LOG_SECONDS:
            last_log = time.monotonic()
            job.log(f"tokenising {job.name}: {sum(w.bytes for w in writers.values()) / 1e6:.0f} MB")
    files = {}
    for writer in writers.values():
        files |= writer.finish()
    splits = {split: writer.counts() for split, writer in writers.items()}
    if splits[HELD_OUT]["documents"]:
        splits[HELD_OUT] |= measure.finish()
    source_keys = ("kind", "path", "field", "subset", "split", "max_documents")
    manifest = {
        "format": FORMAT,
        "source": {key: getattr(job.source, key) for key in source_keys},
        "tokenizer": {key: getattr(tokenizer, key) for key in ("fingerprint", "vocab_size", "bos", "eos")},
        "dtype": dtype,
        "splits": splits,
        "skipped": {"count": report.count, "first": report.shown},
        "files": files,
    }
    return _Pass(manifest, lowest, highest, sum(w.documents for w in writers.values()))


def _document(job: _Job, ids: np.ndarray) -> np.ndarray:
    """The tokens of a document, int64 ``[tokens]``, all of them in the vocabulary: a model's embedding has no others.

    Raises:
        UserError: if the tokenizer has left its vocabulary.
    """
    tokenizer = job.tokenizer
    document = np.concatenate([[tokenizer.bos], ids, [tokenizer.eos]]).astype(np.int64)
    bound = min(tokenizer.vocab_size, 2**31)  # tokens are read as int32
    if document.min() < 0 or document.max() >= bound:
        wrong = document[(document < 0) | (document >= bound)][0]
        raise UserError(
            f"source {job.name!r}: the tokenizer gave the id {wrong} for a text, outside [0, {bound}): choose another "
            "one with data.tokenizer"
        )
    return document


def _batches(named_texts: Iterator[tuple[str, str]]) -> Iterator[list[str]]:
    """Groups texts into batches of about ``BATCH_CHARACTERS`` characters."""
    texts, size = [], 0
    for _, text in named_texts:
        texts.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts
