"""A source of conversations with images, measured once: every image is decoded, and what cannot be used is reported.

The cache keeps the records and the sizes of what they become, never pixels: an image is decoded again at each use, and
must then have the bytes that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig, VisionConfig
from k2jax.data.cache import cache_root, damaged, get_or_build, key_of
from k2jax.data.images.conversations import ConversationRenderer, VisualConversation, read_conversation
from k2jax.data.images.corpus_files import GRIDS, RECORDS, SIZES, checksum, write_corpus
from k2jax.data.images.limits import FRAME_PATCHES
from k2jax.data.images.measured import MeasuredMedia, not_needed
from k2jax.data.images.measuring import (
    MeasuredConversation,
    Measurer,
    Unusable,
    candidates,
    picture_size,
    synthetic_conversation,
)
from k2jax.data.images.places import places_of_source
from k2jax.data.images.reading import ImageError, ReadLimits
from k2jax.data.images.sampled import SampledConversation
from k2jax.data.manifest import FORMAT, HELD_OUT, read_manifest
from k2jax.data.preparation.pools import open_pool
from k2jax.data.sources import CorruptRecords, describe, log_left_out, refuse_skipped, report_unread
from k2jax.data.stored_folder import local_folder
from k2jax.errors import UserError
from k2jax.text.chat import configured_chat
from k2jax.text.tokenizer import Tokenizer

_RENDERING = 11  # raised when the tokens, the patches or the split of the same record change, or what is kept of it


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
        self.tokens, self.patches = sizes["tokens"], sizes["patches"]
        self.targets, self.bytes = int(sizes["targets"].sum()), int(sizes["bytes"].sum())

    def grids(self, number: int) -> list[tuple[int, int, int]]:
        """Frames, height and width in patches of the chunks of conversation ``number``."""
        return self._corpus.grids(int(self._numbers[number]))

    def conversation(
        self, number: int, needed: Collection[int] | None = None
    ) -> VisualConversation | SampledConversation:
        """Conversation ``number``; see ``VisualCorpus.conversation``."""
        return self._corpus.conversation(int(self._numbers[number]), needed)


class VisualCorpus:
    """A measured source.

    Attributes:
        manifest: counts of both splits, and skipped records.
        sizes: ``[conversations]`` of int64 fields: tokens, patches, targets, bytes of the line and its first one,
            chunks, and whether it is held out.
        renderer: from conversations to tokens and patches.
    """

    def __init__(self, folder: Path, measurer: Measurer):
        """Opens a folder of the cache.

        Args:
            folder: with the files of a corpus.
            measurer: what measured it, or would have.

        Raises:
            UserError: it is damaged.
        """
        self.manifest, self.renderer = read_manifest(folder), measurer.renderer
        self._records, self._source, self._limits = folder / RECORDS, measurer.source, measurer.limits
        self._places, self._frames = measurer.places, measurer.renderer.frames
        self.sizes, self._grids = (self._loaded(folder / name) for name in (SIZES, GRIDS))
        self._ends = self.sizes["chunks"].cumsum()
        # Its content is read line by line; a sum over it would read gigabytes at every start.
        if not self._records.is_file() or self._records.stat().st_size != self.manifest["files"][RECORDS]["bytes"]:
            raise damaged(self._records, "missing or not as long as it was", folder)

    def _loaded(self, path: Path) -> np.ndarray:
        try:
            array = np.load(path)
        except (OSError, ValueError, EOFError):
            raise damaged(path, "missing or not readable", path.parent) from None
        if checksum(array.tobytes()) != self.manifest["files"][path.name]["sha256"]:
            raise damaged(path, "not as it was written", path.parent)
        return array

    @property
    def contents(self) -> list[str]:
        """What identifies the contents: checksums of tokens and pixels, and of counts and splits.

        The lines of records are left out, which name the folder of the images: it may move.
        """
        counts = np.stack([self.sizes[name] for name in ("tokens", "patches", "targets", "held_out")], 1)
        return [self.manifest["files"][RECORDS]["sha256"], checksum(counts.tobytes())]

    def split(self, name: str) -> VisualSplit:
        """The conversations of ``train`` or ``held_out``."""
        return VisualSplit(self, np.flatnonzero(self.sizes["held_out"] == (name == HELD_OUT)))

    def grids(self, number: int) -> list[tuple[int, int, int]]:
        """Frames, height and width in patches of the chunks of conversation ``number`` of both splits."""
        stop = int(self._ends[number])
        return [tuple(grid) for grid in self._grids[stop - int(self.sizes["chunks"][number]) : stop].tolist()]

    def conversation(
        self, number: int, needed: Collection[int] | None = None
    ) -> VisualConversation | SampledConversation:
        """Conversation ``number`` of both splits.

        Args:
            number: its number.
            needed: numbers of its chunks whose images and clips are decoded; None is all. A drawn picture is drawn in
                any case, and what is in the messages of a sampled conversation is decoded where it is rendered.

        Raises:
            UserError: its line is damaged, or an image is not what it was when the corpus was measured.
        """
        with self._records.open("rb") as file:
            file.seek(int(self.sizes["first_byte"][number]))
            text = file.readline()
        try:
            line = json.loads(text)
        except ValueError:
            raise damaged(self._records, "not as it was written", self._records.parent) from None
        if "synthetic" in line:
            return synthetic_conversation(picture_size(self._source), *line["synthetic"])
        if "sampled" in line:
            return SampledConversation.from_json(line["sampled"])
        media = [MeasuredMedia.from_json(each) for each in line["media"]]
        undecoded = {} if needed is None else not_needed(media, self._frames, needed)
        return dataclasses.replace(self._measured(line, undecoded), branch=line["branch"])

    def _measured(self, line: dict, undecoded: dict[int, MeasuredMedia]) -> VisualConversation:
        """The conversation of a record with the images that were measured; errors as of ``conversation``.

        What the disk tier keeps of a store may be another version of an image: then the store is asked.
        """
        for tier in ("kept", "renewed"):
            places = dataclasses.replace(self._places.beside(line["folder"]), tier=tier)
            try:
                found = read_conversation(line["record"], places, self._limits, undecoded, self.renderer.reduction)
            except ImageError:
                if tier == "renewed":
                    raise
                continue
            now = [digest or before for digest, before in zip(found.digests, line["digests"], strict=True)]
            if now == line["digests"]:
                return found
        raise UserError(
            f"an image of {line['where']} is not the one that was measured; put it back, or delete "
            f"{self._records.parent} to have the corpus measured again in a new --workdir"
        )


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
    measurer = Measurer(config, source, renderer, limits, places_of_source(name, source))
    described = {
        "format": [FORMAT, _RENDERING],
        "source": _described(name, source),
        "held_out": config.held_out,
        "tokenizer": [tokenizer.encoding, tokenizer.bos, tokenizer.eos],
        "chat": [config.chat_format, config.sequence_length],
        "images": [images.patches, images.image_patches, FRAME_PATCHES, *limits, vision.patch, vision.frames],
        **({"rows_each": images.each} if images.each > 1 else {}),
    }
    folder = cache_root(config.cache_dir) / "shards" / f"{source.kind}-{key_of(described)}"
    report = CorruptRecords(config.on_corrupt, log)
    log_left_out(name, source, log)

    def build(folder: Path) -> None:
        report_unread(name, source, report)
        found = candidates(name, source, config.held_out, limits)
        most = 0 if source.kind == "synthetic_images" else source.max_documents  # it draws as many as it says
        with (
            open_pool(max(1, config.workers)) as pool,
            contextlib.closing(pool.run(measurer, found)) as measured,
        ):
            usable = _usable(measured, report, most)
            write_corpus(folder, name, usable, held_out=config.held_out, report=report, tokenizer=tokenizer)

    folder = local_folder(get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds), get_or_build)
    corpus = VisualCorpus(folder, measurer)
    refuse_skipped(name, corpus.manifest["skipped"], config.on_corrupt)
    return corpus


def _described(name: str, source: SourceConfig) -> dict:
    if source.kind == "synthetic_images":
        return {key: getattr(source, key) for key in ("kind", "max_documents", "pictures", "side", "height")}
    return describe(name, source)


def _usable(
    measured: Iterator[list[MeasuredConversation] | Unusable], report: CorruptRecords, most: int
) -> Iterator[MeasuredConversation]:
    """What can be used of the candidates, the first ``most`` of them, or all if it is 0."""
    kept = 0
    for result in measured:
        if isinstance(result, Unusable):
            report(*result)
            continue
        yield from result
        kept += 1
        if kept == most:
            return
