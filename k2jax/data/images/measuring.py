"""Measuring of a source of conversations with images: each is decoded once, and what cannot be used is reported.

Candidates are listed in the order of the files and measured by this process or by several; what is written does not
depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.best_fit import best_fit
from k2jax.data.chat_rendering import check_sequence
from k2jax.data.images.conversations import (
    ConversationRenderer,
    RenderedConversation,
    VisualConversation,
    drawn_conversation,
    read_conversation,
)
from k2jax.data.images.places import MediaPlaces
from k2jax.data.images.reading import MediaUnavailableError, ReadLimits
from k2jax.data.images.records import visual_records
from k2jax.data.images.sampled import SampledConversation, sampled_conversation
from k2jax.data.manifest import HELD_OUT, TRAIN
from k2jax.data.sources import files
from k2jax.data.split import document_hash
from k2jax.drawings.synthetic import BASIC_KINDS, KINDS, least_size, synthetic_sample
from k2jax.errors import UserError
from k2jax.trajectory.filters import demonstrated_paths
from k2jax.trajectory.store import read_trajectories

SAMPLES = 10_000
"""Synthetic samples where ``max_documents`` names no number."""


class UnmeasuredConversation(NamedTuple):
    """A conversation that is not measured yet; it can be sent to another process.

    Attributes:
        form: how it is given.
        where: its place, in words.
        value: a record in JSON, a ``SampledConversation``, or the place of a drawn picture.
        folder: of the file of its record.
    """

    form: Literal["record", "sampled", "synthetic"]
    where: str
    value: Any
    folder: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredConversation:
    """A usable conversation, or a branch of one.

    Attributes:
        line: what the cache keeps of it, JSON.
        tokens: their number.
        targets: tokens that the assistant wrote.
        grids: frames, height and width in patches of each chunk.
        digest: decides the split.
        held_out: whether it is held out; None leaves that to the digest.
        sha256: of tokens and pixels.
    """

    line: bytes
    tokens: int
    targets: int
    grids: list[tuple[int, int, int]]
    digest: int
    held_out: bool | None
    sha256: bytes


class Unusable(NamedTuple):
    """A candidate that cannot be used: its place, and why, in words."""

    where: str
    why: str


@dataclasses.dataclass(frozen=True)
class Measurer:
    """Measures candidates of a source.

    Attributes:
        config: limits of rows.
        source: whose candidates they are.
        renderer: from conversations to tokens and patches.
        limits: largest file and image.
        places: where files of images may lie, beside each file of records if they have no folder.
    """

    config: DataConfig
    source: SourceConfig
    renderer: ConversationRenderer
    limits: ReadLimits
    places: MediaPlaces

    def __call__(self, candidate: UnmeasuredConversation | Unusable) -> list[MeasuredConversation] | Unusable:
        """What a candidate becomes: one sequence, or as many as it has branches; what is unusable remains so.

        Raises:
            MediaUnavailableError: a store does not answer. That is not the record's fault, and a corpus without the
                record would be kept for good.
            UserError: drawn pictures do not fit a row, which their settings decide.
        """
        if isinstance(candidate, Unusable):
            return candidate
        if candidate.form == "synthetic":
            return self._synthetic(candidate)
        try:
            return self._record(candidate) if candidate.form == "record" else self._sampled(candidate)
        except MediaUnavailableError:
            raise
        except UserError as error:
            return Unusable(candidate.where, str(error))

    def _record(self, candidate: UnmeasuredConversation) -> list[MeasuredConversation]:
        record = json.loads(candidate.value)
        found = read_conversation(
            record, self.places.beside(candidate.folder), self.limits, reduction=self.renderer.reduction
        )
        branches = self.renderer.branches(found)
        line = {"record": record, "folder": candidate.folder, "where": candidate.where}
        line |= {"digests": found.digests, "media": found.media}
        digest = document_hash("".join(sorted(found.digests)).encode() or branches[0].ids.tobytes())
        return [self._measured(line | {"branch": number}, rendered, digest) for number, rendered in enumerate(branches)]

    def _sampled(self, candidate: UnmeasuredConversation) -> list[MeasuredConversation]:
        conversation: SampledConversation = candidate.value
        line = {"sampled": conversation.to_json()}
        return [self._measured(line, self.renderer.render(conversation), conversation.digest)]

    def _synthetic(self, candidate: UnmeasuredConversation) -> list[MeasuredConversation]:
        _, split, index = place = candidate.value
        rendered = self.renderer.render(synthetic_conversation(picture_size(self.source), *place))
        held_out = split == HELD_OUT
        return [self._measured({"synthetic": place}, rendered, 2 * index + held_out, held_out)]

    def _check_patches(self, rendered: RenderedConversation) -> None:
        """Raises UserError where the images fill more rows of the tower than a row of tokens may."""
        length, each = self.config.images.patches, self.config.images.each
        if len(best_fit([chunk.patches for chunk in rendered.chunks], length)) <= each:
            return
        if each == 1:
            raise UserError(f"{rendered.patches:,} patches, more than the {length:,} of config.data.images.patches")
        raise UserError(
            f"{rendered.patches:,} patches of {len(rendered.chunks)} images and chunks of video do not fit {each} rows "
            f"of {length:,} (config.data.images.patches, rows and rows_each)"
        )

    def _measured(
        self, line: dict, rendered: RenderedConversation, digest: int, held_out: bool | None = None
    ) -> MeasuredConversation:
        """The conversation, if it fits a row by itself and there is something to learn from."""
        check_sequence(rendered.ids, rendered.trained, self.config.sequence_length)
        self._check_patches(rendered)
        contents = hashlib.sha256(rendered.ids.tobytes())
        for chunk in rendered.chunks:
            contents.update(chunk.pixels.tobytes())
        return MeasuredConversation(
            line=json.dumps(line).encode(),
            tokens=len(rendered.ids),
            targets=int(rendered.trained[1:].sum()),
            grids=[chunk.grid for chunk in rendered.chunks],
            digest=digest,
            held_out=held_out,
            sha256=contents.digest(),
        )


def candidates(
    name: str, source: SourceConfig, held_out: float, limits: ReadLimits
) -> Iterator[UnmeasuredConversation | Unusable]:
    """The conversations of a source in the order of its files, and what is no JSON or no trajectory.

    Args:
        name: of the source.
        source: where they are.
        held_out: share of pictures that are drawn for the held-out split.
        limits: largest file of an image.

    Raises:
        UserError: the source does not exist, or pictures cannot be drawn as it says.
    """
    if source.kind == "synthetic_images":
        yield from _drawn(source, held_out)
        return
    for file, *_ in files(name, source):
        if source.kind == "image_trajectories":
            yield from _paths(file, source)
        else:
            for where, record, why in visual_records(file, limits):
                written = json.dumps(record).encode()  # what nests deeply is not pickled
                folder = str(file.parent)
                yield Unusable(where, why) if why else UnmeasuredConversation("record", where, written, folder)


def _paths(file: Path, source: SourceConfig) -> Iterator[UnmeasuredConversation | Unusable]:
    """The paths of a trajectory store that pass the source's filters; what each shows is kept in the cache."""
    chosen = {"filters": source.filters} if source.filters else {}
    cut: list[Unusable] = []  # an incomplete last record
    trajectories = read_trajectories(file, lambda line: cut.append(Unusable(str(file), line)))
    for demonstrated in demonstrated_paths(trajectories, **chosen):
        where = f"{file}, trajectory {tuple(demonstrated.trajectory.key)}"
        yield UnmeasuredConversation("sampled", where, sampled_conversation(demonstrated))
    yield from cut


def _drawn(source: SourceConfig, held_out: float) -> Iterator[UnmeasuredConversation]:
    kinds = source.pictures or BASIC_KINDS
    if not set(kinds) <= set(KINDS):
        raise UserError(f"data.sources pictures are {', '.join(kinds)}; there are {', '.join(KINDS)}")
    width, height = picture_size(source)
    least = least_size(kinds)
    if width < least[0] or height < least[1]:
        raise UserError(
            f"data.sources have pictures of {width} x {height} pixels: those of {', '.join(kinds)} are at least "
            f"{least[0]} wide and {least[1]} high"
        )
    count = source.max_documents or SAMPLES
    for number in range(count + max(1, round(held_out * count))):
        split, index = (TRAIN, number) if number < count else (HELD_OUT, number - count)
        place = (kinds[index % len(kinds)], split, index)
        yield UnmeasuredConversation("synthetic", f"picture {number}", place)


def picture_size(source: SourceConfig) -> tuple[int, int]:
    """Width and height of the pictures of a source of ``synthetic_images`` [pixels]."""
    return source.side, source.height or source.side


def synthetic_conversation(size: tuple[int, int], kind: Any, split: Any, index: int) -> VisualConversation:
    """A drawn picture of this width and height with its question and answer."""
    return drawn_conversation(synthetic_sample(0, index, kind=kind, split=split, size=size))
