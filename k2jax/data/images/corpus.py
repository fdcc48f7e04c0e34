"""A source of conversations with images, measured once: every image is decoded, and what cannot be used is reported.

The cache keeps the records and the sizes of what they become, never pixels: an image is decoded again at each use, and
must then have the bytes that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig, VisionConfig
from k2jax.data.cache import cache_root, damaged, get_or_build, key_of
from k2jax.data.images.conversations import (
    ConversationRenderer,
    RenderedConversation,
    VisualConversation,
    drawn_conversation,
    read_conversation,
)
from k2jax.data.images.reading import MediaUnavailableError, ReadLimits
from k2jax.data.images.rows import VisualRows
from k2jax.data.images.sampled import SampledConversation, sampled_conversation
from k2jax.data.images.synthetic import BASIC_KINDS, KINDS, least_size, synthetic_sample
from k2jax.data.manifest import ASSISTANT, FORMAT, HELD_OUT, TRAIN, read_manifest, shard_dtype, write_manifest
from k2jax.data.records import json_lines
from k2jax.data.sources import CorruptRecords, describe, files
from k2jax.data.split import adjusted_threshold, document_hash, threshold_for
from k2jax.errors import UserError
from k2jax.text.chat import configured_chat
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory.filters import demonstrated_paths
from k2jax.trajectory.store import read_trajectories

RECORDS, SIZES = "records.jsonl", "sizes.npy"
SAMPLES = 10_000
"""Synthetic samples where ``max_documents`` names no number."""
_RENDERING = 7  # raised when the tokens, the patches or the split of the same record change


class _Kept(NamedTuple):
    """A usable conversation of a source: its line in the cache, and what it becomes."""

    line: bytes
    rendered: RenderedConversation
    digest: int


class VisualSplit:
    """One split of a source.

    Attributes:
        documents: number of conversations.
        bytes: bytes of their records.
        targets: tokens of the assistant.
        tokens: int64 ``[documents]``, tokens of each.
        patches: int64 ``[documents]``, patches of each.
        renderer: from conversations to tokens and patches.
    """

    def __init__(self, corpus: VisualCorpus, numbers: np.ndarray):
        """The conversations of these numbers."""
        self._corpus, self._numbers = corpus, numbers
        sizes = corpus.sizes[numbers]
        self.documents, self.renderer = len(numbers), corpus.renderer
        self.tokens, self.patches = sizes[:, 0], sizes[:, 1]
        self.targets, self.bytes = int(sizes[:, 2].sum()), int(sizes[:, 3].sum())

    def conversation(self, number: int) -> VisualConversation | SampledConversation:
        """Conversation ``number``, its images decoded unless they are in its messages.

        Raises:
            UserError: an image is not what it was when the corpus was measured.
        """
        return self._corpus.conversation(int(self._numbers[number]))


class VisualCorpus:
    """A measured source.

    Attributes:
        manifest: counts of both splits, and skipped records.
        sizes: int64 ``[conversations, 6]``: tokens, patches, targets, bytes, first byte of the line, whether held out.
        renderer: from conversations to tokens and patches.
    """

    def __init__(self, folder: Path, source: SourceConfig, renderer: ConversationRenderer, limits: ReadLimits):
        """Opens a folder of the cache.

        Raises:
            UserError: it is damaged.
        """
        self.manifest, self.renderer = read_manifest(folder), renderer
        self._records, self._source, self._limits = folder / RECORDS, source, limits
        try:
            self.sizes = np.load(folder / SIZES)
        except (OSError, ValueError, EOFError):
            raise damaged(folder / SIZES, "missing or not readable", folder) from None
        if _sha256(self.sizes.tobytes()) != self.manifest["files"][SIZES]["sha256"]:
            raise damaged(folder / SIZES, "not as it was written", folder)
        # Its content is read line by line; a sum over it would read gigabytes at every start.
        if not self._records.is_file() or self._records.stat().st_size != self.manifest["files"][RECORDS]["bytes"]:
            raise damaged(self._records, "missing or not as long as it was", folder)

    @property
    def contents(self) -> list[str]:
        """What identifies the contents: checksums of tokens and pixels, and of counts and splits.

        The lines of records are left out, which name the folder of the images: it may move.
        """
        counts = self.sizes[:, [0, 1, 2, 5]]
        return [self.manifest["files"][RECORDS]["sha256"], _sha256(counts.tobytes())]

    def split(self, name: str) -> VisualSplit:
        """The conversations of ``train`` or ``held_out``."""
        return VisualSplit(self, np.flatnonzero(self.sizes[:, 5] == (name == HELD_OUT)))

    def rows(self, name: str, config: DataConfig) -> VisualRows:
        """Rows of ``train`` or ``held_out``, which is never augmented."""
        augment = config.images.augment if name == TRAIN else 0.0
        return VisualRows(self.split(name), config.sequence_length, patches=config.images.patches, augment=augment)

    def conversation(self, number: int) -> VisualConversation | SampledConversation:
        """Conversation ``number`` of both splits.

        Raises:
            UserError: its line is damaged, or an image is not what it was when the corpus was measured.
        """
        with self._records.open("rb") as file:
            file.seek(int(self.sizes[number, 4]))
            text = file.readline()
        try:
            line = json.loads(text)
        except ValueError:
            raise damaged(self._records, "not as it was written", self._records.parent) from None
        if "synthetic" in line:
            return _synthetic(picture_size(self._source), *line["synthetic"])
        if "sampled" in line:
            return SampledConversation.from_json(line["sampled"])
        found = read_conversation(line["record"], line["folder"], self._limits)
        if list(found.digests) != line["digests"]:
            raise UserError(
                f"an image of {line['where']} is not the one that was measured; put it back, or delete "
                f"{self._records.parent} to have the corpus measured again in a new --workdir"
            )
        return dataclasses.replace(found, branch=line["branch"])


def prepare_visual(
    name: str,
    config: DataConfig,
    tokenizer: Tokenizer,
    vision: VisionConfig,
    *,
    builder: bool = True,
    wait_seconds: float = 3600.0,
    log: Callable[[str], None] | None = None,
) -> VisualCorpus:
    """Returns a measured source, from the cache or measured now.

    Args:
        name: a key of ``config.sources``.
        config: sources, limits, treatment of corrupt records, and cache.
        tokenizer: tokenizer of the conversations.
        vision: the tower.
        builder: whether this process may measure; the others wait.
        wait_seconds: how long they wait [s].
        log: receives lines of progress.

    Raises:
        UserError: the source or a record is unusable, or the cache cannot be written.
    """
    source, images = config.sources[name], config.images
    chat = configured_chat(tokenizer, config.chat_format)
    renderer = ConversationRenderer(chat, tokenizer, vision, images)
    limits = ReadLimits(images.megabytes, images.megapixels)
    described = {
        "format": [FORMAT, _RENDERING],
        "source": _described(name, source),
        "held_out": config.held_out,
        "tokenizer": [tokenizer.fingerprint, tokenizer.bos, tokenizer.eos],
        "chat": [config.chat_format, config.sequence_length],
        "images": [images.patches, images.image_patches, images.frame_patches, *limits, vision.patch, vision.frames],
    }
    folder = cache_root(config.cache_dir) / "shards" / f"{source.kind}-{key_of(described)}"
    report = CorruptRecords(config.on_corrupt, log)

    def build(folder: Path) -> None:
        measured = _measured(folder, _conversations(name, config, renderer, limits, report))
        _write(folder, name, config, measured, report, tokenizer)

    get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds)
    corpus = VisualCorpus(folder, source, renderer, limits)
    skipped = corpus.manifest["skipped"]
    if skipped["count"] and config.on_corrupt == "fail":
        raise UserError(
            f"source {name!r} has {skipped['count']} corrupt records, the first in {skipped['first'][0]}; repair them, "
            "or set data.on_corrupt=skip"
        )
    return corpus


def _described(name: str, source: SourceConfig) -> dict:
    if source.kind == "synthetic_images":
        return {key: getattr(source, key) for key in ("kind", "max_documents", "pictures", "side", "height")}
    return describe(name, source)


def _conversations(
    name: str, config: DataConfig, renderer: ConversationRenderer, limits: ReadLimits, report: CorruptRecords
) -> Iterator[tuple[_Kept, bool | None]]:
    """Usable conversations, and whether each is held out; None leaves that to its digest."""
    source = config.sources[name]
    if source.kind == "synthetic_images":
        yield from _synthetic_conversations(source, config, renderer)
        return
    if source.kind == "image_trajectories":
        yield from _sampled_conversations(name, config, renderer, report)
        return
    kept = 0
    for file in files(name, source):
        for _, where, record, _ in json_lines(file, report):
            if source.max_documents and kept == source.max_documents:
                return
            try:
                found = read_conversation(record, file.parent, limits)
                branches = [_checked(rendered, config) for rendered in renderer.branches(found)]
            except MediaUnavailableError:  # not the record's fault: a corpus without it would be kept for good
                raise
            except UserError as error:
                report(where, str(error))
                continue
            kept += 1
            line = {"record": record, "folder": str(file.parent), "digests": found.digests, "where": where}
            digest = document_hash("".join(sorted(found.digests)).encode() or branches[0].ids.tobytes())
            for branch, rendered in enumerate(branches):
                yield _Kept(json.dumps(line | {"branch": branch}).encode(), rendered, digest), None


def _sampled_conversations(
    name: str, config: DataConfig, renderer: ConversationRenderer, report: CorruptRecords
) -> Iterator[tuple[_Kept, None]]:
    """The paths of a trajectory store that pass the source's filters; what each shows is kept in the cache."""
    source = config.sources[name]
    chosen = {"filters": source.filters} if source.filters else {}
    kept = 0
    for file in files(name, source):
        trajectories = read_trajectories(file, lambda line, file=file: report(str(file), line))
        for demonstrated in demonstrated_paths(trajectories, **chosen):
            if source.max_documents and kept == source.max_documents:
                return
            conversation = sampled_conversation(demonstrated)
            try:
                rendered = _checked(renderer.render(conversation), config)
            except UserError as error:
                report(f"{file}, trajectory {tuple(demonstrated.trajectory.key)}", str(error))
                continue
            kept += 1
            line = json.dumps({"sampled": conversation.to_json()})
            yield _Kept(line.encode(), rendered, conversation.digest), None


def _synthetic_conversations(
    source: SourceConfig, config: DataConfig, renderer: ConversationRenderer
) -> Iterator[tuple[_Kept, bool]]:
    kinds = source.pictures or BASIC_KINDS
    if not set(kinds) <= set(KINDS):
        raise UserError(f"data.sources pictures are {', '.join(kinds)}; there are {', '.join(KINDS)}")
    width, height = size = picture_size(source)
    least = least_size(kinds)
    if width < least[0] or height < least[1]:
        raise UserError(
            f"data.sources have pictures of {width} x {height} pixels: those of {', '.join(kinds)} are at least "
            f"{least[0]} wide and {least[1]} high"
        )
    count = source.max_documents or SAMPLES
    held_out = max(1, round(config.held_out * count))
    for number in range(count + held_out):
        split, index = (TRAIN, number) if number < count else (HELD_OUT, number - count)
        place = (kinds[index % len(kinds)], split, index)
        rendered = _checked(renderer.render(_synthetic(size, *place)), config)
        line = json.dumps({"synthetic": place}).encode()
        yield _Kept(line, rendered, number), split == HELD_OUT


def picture_size(source: SourceConfig) -> tuple[int, int]:
    """Width and height of the pictures of a source of ``synthetic_images`` [pixels]."""
    return source.side, source.height or source.side


def _synthetic(size: tuple[int, int], kind: Any, split: Any, index: int) -> VisualConversation:
    return drawn_conversation(synthetic_sample(0, index, kind=kind, split=split, size=size))


def _checked(rendered: RenderedConversation, config: DataConfig) -> RenderedConversation:
    """The conversation, if it fits a row by itself and there is something to learn from."""
    if len(rendered.ids) > config.sequence_length:
        raise UserError(
            f"{len(rendered.ids):,} tokens, more than the {config.sequence_length:,} of config.data.sequence_length"
        )
    if rendered.patches > config.images.patches:
        raise UserError(
            f"{rendered.patches:,} patches, more than the {config.images.patches:,} of config.data.images.patches"
        )
    if not rendered.trained[1:].any():
        raise UserError("nothing that the assistant wrote")
    return rendered


class _Measured(NamedTuple):
    """What is known of a source's conversations: columns of sizes but the last, digests, splits, and a checksum."""

    sizes: list[tuple[int, ...]]
    digests: list[int]
    held_out: list[bool | None]
    sha256: str


def _measured(folder: Path, conversations: Iterator[tuple[_Kept, bool | None]]) -> _Measured:
    """Writes a line for each conversation; the checksum is of tokens and pixels."""
    measured, contents = _Measured([], [], [], ""), hashlib.sha256()
    with (folder / RECORDS).open("wb") as file:
        for (line, rendered, digest), held_out in conversations:
            targets = int(rendered.trained[1:].sum())
            measured.sizes.append((len(rendered.ids), rendered.patches, targets, len(line), file.tell()))
            measured.digests.append(digest)
            measured.held_out.append(held_out)
            contents.update(rendered.ids.tobytes())
            for chunk in rendered.chunks:
                contents.update(chunk.pixels.tobytes())
            file.write(line + b"\n")
    return measured._replace(sha256=contents.hexdigest())


def _write(
    folder: Path, name: str, config: DataConfig, measured: _Measured, report: CorruptRecords, tokenizer: Tokenizer
) -> None:
    """Decides the split, and writes sizes and manifest."""
    digests = measured.digests
    if len(set(digests)) < 2:
        why = f"; {report.count} records were skipped, the first in {report.shown[0]}" if report.count else ""
        what = "one conversation, or all about the same images" if digests else "no conversation"
        raise UserError(f"source {name!r} has {what}: training and validation need at least two{why}")
    threshold = adjusted_threshold(threshold_for(config.held_out), min(digests), max(digests))
    pairs = zip(digests, measured.held_out, strict=True)
    out = [digest < threshold if known is None else known for digest, known in pairs]
    sizes = np.concatenate([np.array(measured.sizes, np.int64), np.array(out, np.int64)[:, None]], 1)
    np.save(folder / SIZES, sizes)
    manifest = {
        "format": FORMAT,
        "tokenizer": {key: getattr(tokenizer, key) for key in ("fingerprint", "vocab_size", "bos", "eos")},
        "dtype": shard_dtype(tokenizer.vocab_size),
        "splits": {split: _counts(sizes[sizes[:, 5] == (split == HELD_OUT)]) for split in (TRAIN, HELD_OUT)},
        "skipped": {"count": report.count, "first": report.shown},
        "files": {
            SIZES: {"bytes": (folder / SIZES).stat().st_size, "sha256": _sha256(sizes.tobytes())},
            RECORDS: {"bytes": (folder / RECORDS).stat().st_size, "sha256": measured.sha256},
        },
    }
    write_manifest(folder, manifest)


def _counts(sizes: np.ndarray) -> dict[str, int]:
    tokens, patches, targets, length = (int(column.sum()) for column in sizes[:, :4].T)
    return {"documents": len(sizes), "tokens": tokens, "bytes": length, ASSISTANT: targets, "patches": patches}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
