"""Tokenises a source once, in a streaming pass, into a folder of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
from pathlib import Path
import shutil

from k2jax.config.schema import CONVERSATIONS, DataConfig, SourceConfig
from k2jax.data.cache import cache_root, get_or_build, key_of
from k2jax.data.manifest import ASSISTANT, FORMAT, HELD_OUT, TRAIN, shard_dtype, write_manifest
from k2jax.data.measure import TextMeasure
from k2jax.data.preparation.choosing import choose, describe_steps, has_steps
from k2jax.data.preparation.cutting import cut, has_files
from k2jax.data.preparation.deciding import Deciding
from k2jax.data.preparation.joining import JoinedParts
from k2jax.data.preparation.pools import TaskPool, open_pool
from k2jax.data.preparation.tokenising import CHAT_FORMAT, Tokenising
from k2jax.data.shards import Shards, open_shards
from k2jax.data.sources import (
    CorruptRecords,
    at_least_one,
    describe,
    documents,
    log_left_out,
    refuse_skipped,
    report_unread,
)
from k2jax.data.split import adjusted_threshold, threshold_for
from k2jax.data.split_writer import SplitWriter
from k2jax.data.tokenised import Reader, Tokenised, tokenised_texts
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer

TOKENS_PER_SHARD = 64 * 2**20
Log = Callable[[str], None]


def prepare_shards(
    name: str,
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    builder: bool = True,
    wait_seconds: float = 3600.0,
    log: Log | None = None,
    pool: TaskPool | None = None,
) -> Shards:
    """Returns the tokenised shards of a source, from the cache or built now.

    Args:
        name: a key of ``config.sources``.
        config: sources, held-out fraction, treatment of corrupt records, and cache.
        tokenizer: tokenizer of the documents.
        builder: whether this process may build; the others wait.
        wait_seconds: how long they wait [s].
        log: receives lines of progress.
        pool: does the work; None is processes on all cores.

    Raises:
        UserError: if the source or a record is unusable, the cache cannot be written, or shards are damaged.
    """
    source = config.sources[name]
    marked = source.kind in CONVERSATIONS
    described = {
        "format": FORMAT,
        "source": describe(name, source),
        "held_out": config.held_out,
        "tokenizer": [tokenizer.encoding, tokenizer.bos, tokenizer.eos],
    }
    if marked:
        described["chat"] = [CHAT_FORMAT, config.chat_format, config.sequence_length]
    if has_steps(config, name):
        described["steps"] = describe_steps(config, name)
    folder = cache_root(config.cache_dir) / "shards" / f"{source.kind}-{key_of(described)}"
    log_left_out(name, source, log)

    def build(folder: Path) -> None:
        with contextlib.nullcontext(pool) if pool else open_pool() as workers:
            _build(folder, name, config, tokenizer, workers, log)

    shards = open_shards(get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds))
    refuse_skipped(name, shards.manifest["skipped"], config.on_corrupt)
    return shards


def _build(folder: Path, name: str, config: DataConfig, tokenizer: Tokenizer, pool: TaskPool, log: Log | None) -> None:
    """Fills a folder: by parts, of the documents that the steps keep."""
    source, root, say = config.sources[name], folder.parent.parent, log or (lambda line: None)
    threshold = threshold_for(config.held_out)
    make = Tokenising(name=name, config=config, tokenizer=tokenizer, threshold=threshold, folder=root / "parts")
    parts, facts = None, {}
    if has_steps(config, name):
        decide = Deciding(source=source, steps=config.steps, folder=root / "decisions")
        tasks, facts = choose(name, config, decide.folder, pool, log)
        parts = JoinedParts(tasks, dataclasses.replace(make, decide=decide), pool, log)
    elif has_files(source):
        parts = JoinedParts(list(cut(name, source)), make, pool, log)
    job = _Job(
        name=name, source=source, tokenizer=tokenizer, read=_reader(make, parts), marked=make.is_marked, log=say,
        facts=facts,
    )  # fmt: skip
    _build_folder(folder, job, CorruptRecords(config.on_corrupt, say), threshold)
    if parts:
        parts.remove()


def _reader(make: Tokenising, parts: JoinedParts | None) -> Reader:
    """What reads a source, by parts where it has them: a data set that is streamed cannot be cut."""
    name, source, tokenizer = make.name, make.source, make.tokenizer

    def read(report: CorruptRecords) -> Iterator[Tokenised]:
        report_unread(name, source, report)
        if parts is None:
            return tokenised_texts(name, documents(name, source, report), tokenizer)
        what = "conversations" if make.is_marked else "documents"
        return at_least_one(name, source, parts.read(report), report, what)

    return read


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """A source to tokenise, whether its values are marked ids, where to log progress, and what a manifest adds."""

    name: str
    source: SourceConfig
    tokenizer: Tokenizer
    read: Reader
    marked: bool
    log: Log
    facts: dict


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Result of one pass over a source: its manifest, the range of its documents' digests, and their number."""

    manifest: dict
    lowest: int
    highest: int
    documents: int


def _build_folder(folder: Path, job: _Job, report: CorruptRecords, threshold: int) -> None:
    """Fills a folder; reads a small source a second time if the first pass left a split empty."""
    result = _tokenise(folder, job, report, threshold)
    if result.lowest == result.highest:
        raise UserError(f"source {job.name!r} has {_alike(job, result.documents)}")
    adjusted = adjusted_threshold(threshold, result.lowest, result.highest)
    if adjusted != threshold:
        shutil.rmtree(folder)
        folder.mkdir()
        result = _tokenise(folder, job, CorruptRecords(), adjusted)
    manifest = result.manifest | {"split_threshold": str(adjusted)}
    write_manifest(folder, manifest)
    train, held_out = manifest["splits"][TRAIN], manifest["splits"][HELD_OUT]
    what = "conversations" if job.marked else "documents"
    counts = f"{train['documents']} {what}, {train['tokens']} tokens; held out {held_out['documents']} {what}"
    job.log(f"{job.name}: {counts}")
    if unread := manifest["unread_fields"]:
        fields = ", ".join(f"{name} ({count:,})" for name, count in unread.items())
        job.log(f"{job.name}: fields of records that are not read: {fields}")


def _alike(job: _Job, count: int) -> str:
    """Why a source cannot be divided into two splits."""
    if job.marked:
        what = "one conversation" if count == 1 else f"{count} conversations, all with the same prompt"
        return f"{what}: training and validation need at least two prompts"
    what = "one document" if count == 1 else f"{count} documents, all with the same text"
    return f"{what}: training and validation need at least two, so cut the text into several files"


def _tokenise(folder: Path, job: _Job, report: CorruptRecords, threshold: int) -> _Pass:
    """Writes both splits in one pass over the source."""
    tokenizer = job.tokenizer
    dtype = shard_dtype(tokenizer.vocab_size, job.marked)
    writers = {split: SplitWriter(folder, split, dtype, TOKENS_PER_SHARD) for split in (TRAIN, HELD_OUT)}
    trained = dict.fromkeys(writers, 0)
    measure, lowest, highest = TextMeasure(), 2**64, -1
    for record in job.read(report):
        lowest, highest = min(lowest, record.digest), max(highest, record.digest)
        split = HELD_OUT if record.digest < threshold else TRAIN
        if split == HELD_OUT and record.text is not None:
            measure.add(record.text)
        writers[split].add(record.values, record.size)
        if job.marked:
            trained[split] += int((record.values[1:] & 1).sum())
    files = {}
    for writer in writers.values():
        files |= writer.finish()
    splits = {split: writer.counts() for split, writer in writers.items()}
    if job.marked:
        splits = {split: counts | {ASSISTANT: trained[split]} for split, counts in splits.items()}
    elif splits[HELD_OUT]["documents"]:
        splits[HELD_OUT] |= measure.finish()
    source_keys = ("kind", "path", "field", "subset", "split", "max_documents")
    manifest = {
        "format": FORMAT,
        "source": {key: getattr(job.source, key) for key in source_keys} | _provenance(job.source),
        "tokenizer": {key: getattr(tokenizer, key) for key in ("fingerprint", "vocab_size", "bos", "eos")},
        "dtype": dtype,
        "splits": splits,
        **report.manifest,
        **job.facts,
        "files": files,
    }
    if job.marked:
        manifest["marked"] = True
    return _Pass(manifest, lowest, highest, sum(w.documents for w in writers.values()))


def _provenance(source: SourceConfig) -> dict[str, str]:
    """What the user says of the texts, where anything is said."""
    said = {"licence": source.licence, "version": source.version}
    return {key: value for key, value in said.items() if value}
