"""Conversations with images before they are tokens: read from a record or drawn, augmented, and rendered.

A record is a JSON object of ``messages`` whose content may have parts ``image``, ``image_url``, ``video``, and labels
(``boxes``, ``points``, ``polygons``), or of one ``document`` of such parts. A video is a file, or the list of its
frames with their number per second in ``fps``. ``augment`` lists what may be done to its pictures
(``augment.OPERATIONS``); a text with ``"directions": true`` has its words for sides exchanged with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import itertools
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from k2jax.config.schema import ImagesConfig, VisionConfig
from k2jax.data.chat_records import messages_and_tools
from k2jax.data.chat_rendering import branches
from k2jax.data.images.augment import (
    IN_PLACE,
    OPERATIONS,
    Augmentation,
    draw_augmentation,
    has_direction,
    is_exchangeable,
)
from k2jax.data.images.frames import Clip, read_clip, read_frames, reduced_size
from k2jax.data.images.measured import MeasuredMedia
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.data.images.places import MediaPlaces, read_media
from k2jax.data.images.processor import MEDIA_TYPES, PreparedMessages, feature_index, run_processor
from k2jax.data.images.reading import ImageError, ReadLimits, read_image
from k2jax.data.images.sampled import SampledConversation
from k2jax.drawings.canvas import VisualSample
from k2jax.drawings.labels import is_label, label_points, label_text
from k2jax.drawings.synthetic import PICTURE_KINDS
from k2jax.errors import UserError, abbreviate
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.media import MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD, content_ids
from k2jax.text.messages import with_parts
from k2jax.text.tokenizer import Tokenizer

_TEXTS = "text", "thinking"  # keys of a part's texts, whatever it says its type is
_DIRECTIONS = "directions"


@dataclasses.dataclass(frozen=True)
class VisualConversation:
    """A conversation whose images are decoded, where they are needed.

    Attributes:
        messages: content with Pillow images and clips in its parts, or what was measured of them.
        tools: tools to declare, or None.
        permitted: augmentations that leave it true.
        digests: sha256 of every image's bytes, in order; empty for one that is not decoded.
        branch: which of the sequences it is that it is trained as, see ``ConversationRenderer.branches``.
        document: whether it is no conversation: the content of the one message is a document, whose texts are targets.
    """

    messages: list[Any]
    tools: list[Any] | None
    permitted: tuple[str, ...]
    digests: tuple[str, ...]
    branch: int = 0
    document: bool = False

    @property
    def media(self) -> list[MeasuredMedia]:
        """What is measured of its images and clips, in order."""
        return [media for message in self.messages for part in _parts(message) for media in _media(part)]


class RenderedConversation(NamedTuple):
    """A conversation as tokens and patches.

    Attributes:
        ids: int32 ``[tokens]``.
        trained: bool ``[tokens]``, whether each is a target: the assistant's, tokens of media excepted.
        chunks: patches of its images and chunks of clips.
        feature: int32 ``[tokens]``, which feature, counted over its chunks, stands for the token; -1 for text.
    """

    ids: np.ndarray
    trained: np.ndarray
    chunks: list[PatchChunk]
    feature: np.ndarray

    @property
    def patches(self) -> int:
        """Patches of all its chunks."""
        return sum(chunk.patches for chunk in self.chunks)


def read_conversation(
    record: Any,
    places: MediaPlaces,
    limits: ReadLimits,
    undecoded: Mapping[int, MeasuredMedia] = MappingProxyType({}),
    reduction: Mapping[str, Any] | None = None,
) -> VisualConversation:
    """Decodes the images of a record.

    Args:
        record: the JSON value.
        places: where files of images may lie.
        limits: largest file and image.
        undecoded: images and clips that are not opened, by their numbers.
        reduction: of the frames of clips that are not augmented, see ``read_clip``.

    Raises:
        UserError: the record is malformed.
        ImageError: an image is missing, elsewhere, damaged or beyond the limits.
    """
    document = record.get("document") if isinstance(record, Mapping) and "messages" not in record else None
    whole = isinstance(document, list) and bool(document)
    messages, tools = ([{"content": document}], None) if whole else messages_and_tools(record)
    permitted = record.get("augment") or ()
    if not isinstance(permitted, list | tuple) or not all(name in OPERATIONS for name in permitted):
        raise UserError(f"augment is {abbreviate(permitted)}; it may list {', '.join(OPERATIONS)}")
    digests: list[str] = []
    reduction = None if permitted else reduction

    def decoded(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in MEDIA_TYPES:
            return part
        if (known := undecoded.get(len(digests))) is not None:
            digests.append("")
            return {"type": kind, kind: known}
        value = part.get(kind)
        value = value.get("url") if kind == "image_url" and isinstance(value, Mapping) else value
        if kind == "video" and isinstance(value, list):
            clip, digest = _listed(value, part.get("fps"), places, limits, reduction)
            digests.append(digest)
            return {"type": kind, kind: clip}
        name = f"image {len(digests) + 1}" if kind != "video" else "video"
        data = read_media(value, places, limits, name)
        digests.append(hashlib.sha256(data).hexdigest())
        if kind == "video":
            return {"type": kind, kind: read_clip(data, limits, name, reduction)}
        return {"type": kind, kind: read_image(data, limits, name)}

    parts = with_parts(messages, decoded)
    return VisualConversation(parts, tools, tuple(permitted), tuple(digests), document=whole)


def drawn_conversation(sample: VisualSample) -> VisualConversation:
    """A synthetic sample as a question and its answer.

    A label moves with the picture as far as its kind permits; a text stays as it is.
    """
    question = [{"type": "image", "image": sample.image}, {"type": "text", "text": sample.question}]
    answer = sample.label or {"type": "text", "text": sample.answer}
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": [answer]}]
    return VisualConversation(messages, None, PICTURE_KINDS[sample.kind].permitted, ())


class ConversationRenderer:
    """From conversations to tokens and patches; nothing in it changes.

    Attributes:
        frames: most frames of a chunk.
        reduction: what frames are reduced to as they are read, see ``read_clip``.

    Args:
        chat: the chat format.
        tokenizer: its vocabulary, with the special tokens of media.
        vision: the tower.
        images: limits.
    """

    def __init__(self, chat: ChatFormat, tokenizer: Tokenizer, vision: VisionConfig, images: ImagesConfig):
        self._processor, self.frames = run_processor(vision, images), vision.frames
        self.reduction = self._processor.reduction
        self._chat, self._tokenizer, self._pad = chat, tokenizer, tokenizer.special_id(MEDIA_PAD)
        markup = (MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD)
        self._markup = [tokenizer.special_id(name) for name in markup]

    def render(
        self, conversation: VisualConversation | SampledConversation, augmentation: Augmentation | None = None
    ) -> RenderedConversation:
        """Renders a conversation, or its branch, transformed or as it is; a sampled one keeps its ids.

        Raises:
            UserError: a message is malformed, or the chat format does not support it.
        """
        if isinstance(conversation, SampledConversation):
            chunks = self._processor.prepare(conversation.messages).chunks
            return RenderedConversation(
                conversation.ids, conversation.trained, chunks, self._features(conversation.shown_T, chunks)
            )
        return self.branches(conversation, augmentation)[conversation.branch]

    def branches(
        self, conversation: VisualConversation, augmentation: Augmentation | None = None
    ) -> list[RenderedConversation]:
        """The sequences that a conversation is trained as, each with the images up to its end; see ``chat.branches``.

        Raises:
            UserError: a message is malformed, or the chat format does not support it.
        """
        parts = lambda part: _rendered_part(part, augmentation)  # noqa: E731
        prepared = self._processor.prepare(with_parts(conversation.messages, parts))
        if conversation.document:
            return [self._document(prepared)]
        found = branches(prepared.messages, conversation.tools, self._chat)
        return [self._rendered(builder, prepared.chunks) for builder in found]

    def _rendered(self, builder: ChatBuilder, chunks: list[PatchChunk]) -> RenderedConversation:
        """A sequence with those of a conversation's chunks that it comes to."""
        ids = np.array(builder.tokens, np.int32)
        features = np.cumsum([chunk.features for chunk in chunks])
        shown = chunks[: int(np.searchsorted(features, (ids == self._pad).sum(), side="right"))]
        trained = np.array(builder.by_assistant, bool) & ~np.isin(ids, self._markup)
        return RenderedConversation(ids, trained, shown, self._features(ids, shown))

    def _document(self, prepared: PreparedMessages) -> RenderedConversation:
        """Texts and images between the tokens of a document's beginning and end; all but the media are targets.

        The clock before a chunk of a clip, and the line feed after an image, are text.
        """
        tokenizer = self._tokenizer
        content = content_ids(tokenizer, prepared.messages[0])
        ids = np.array([*tokenizer.encode_document(""), *content, tokenizer.eos], np.int32)
        begin, _, end, _ = self._markup
        shown = np.cumsum(ids == begin) > np.cumsum(ids == end)
        trained = ~shown & (ids != end)
        return RenderedConversation(ids, trained, prepared.chunks, self._features(ids, prepared.chunks))

    def _features(self, ids: np.ndarray, chunks: list[PatchChunk]) -> np.ndarray:
        """Which feature, counted over the chunks, stands for each token."""
        ends = np.cumsum([0, *(chunk.features for chunk in chunks)])
        own = [np.arange(start, stop) for start, stop in itertools.pairwise(ends)]
        return feature_index(ids, self._pad, own)

    def draw(
        self, conversation: VisualConversation | SampledConversation, rng: np.random.Generator
    ) -> Augmentation | None:
        """An augmentation that the conversation permits; None where it permits none.

        Pictures stay in place beside calls of tools, whose arguments may say where something is in forms of their own,
        and beside texts that may say so in words that are not marked to be exchanged.
        """
        permitted, messages = conversation.permitted, conversation.messages
        parts = [part for message in messages for part in _parts(message)]
        marked = [text for part in parts if _is_marked(part) for text in _texts(part).values()]
        called = any(isinstance(message, Mapping) and message.get("tool_calls") for message in messages)
        if called or not all(map(is_exchangeable, marked)) or any(map(has_direction, _strings(messages))):
            permitted = tuple(name for name in permitted if name in IN_PLACE)
        if not permitted:
            return None
        sizes = [media.size for part in parts for media in _media(part)]
        points = [label_points(part) for part in parts if is_label(part)]
        return draw_augmentation(
            rng,
            permitted,
            square=all(width == height for width, height in sizes),
            directed=any(map(has_direction, marked)),
            points=np.concatenate([np.zeros((0, 2)), *points]),
        )


def _rendered_part(part: Any, augmentation: Augmentation | None) -> Any:
    """A part with its label as text, and transformed."""
    if is_label(part):
        label_points(part)  # checks it
        return {"type": "text", "text": label_text(part, augmentation)}
    texts = _texts(part) if _is_marked(part) and augmentation else {}
    if isinstance(part, Mapping) and _DIRECTIONS in part:
        part = {key: value for key, value in part.items() if key != _DIRECTIONS}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if texts:
        return {**part, **{key: augmentation.text(text) for key, text in texts.items()}}
    if augmentation is None or kind not in MEDIA_TYPES or isinstance(part.get(kind), MeasuredMedia):
        return part
    if kind == "video":
        clip = part[kind]
        return {**part, kind: Clip([augmentation.picture(frame) for frame in clip.frames], clip.times)}
    return {**part, kind: augmentation.picture(part[kind])}


def _is_marked(part: Any) -> bool:
    """Whether a text asks for its words for sides to be exchanged as the sides are: ``"directions": true``.

    Raises:
        UserError: the mark is neither true nor false.
    """
    mark = part.get(_DIRECTIONS, False) if isinstance(part, Mapping) else False
    if not isinstance(mark, bool):
        raise UserError(f"directions is {abbreviate(mark)}; it must be true or false")
    return mark and bool(_texts(part))


def _strings(value: Any) -> Iterator[str]:
    """All texts of messages, under whatever key, but for marked parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list) and not _is_marked(value):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def _parts(message: Any) -> Sequence[Any]:
    """The parts of a message's content that are no plain text."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _texts(part: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a marked part by their keys."""
    return {key: part[key] for key in _TEXTS if isinstance(part.get(key), str)}


def _media(part: Any) -> list[MeasuredMedia]:
    values = part.values() if isinstance(part, Mapping) else ()
    measured = [value for value in values if isinstance(value, MeasuredMedia)]
    return measured or [MeasuredMedia.of(value) for value in values if isinstance(value, Image.Image | Clip)]


def _listed(
    files: list[Any], rate: Any, places: MediaPlaces, limits: ReadLimits, reduction: Mapping[str, Any] | None
) -> tuple[Clip, str]:
    """The sampled frames of a video that is a list of images, and a digest of their files."""
    digest, left = hashlib.sha256(), limits.clip_megapixels

    def read(file: Any, name: str) -> Image.Image:
        nonlocal left
        data = read_media(file, places, limits, name)
        digest.update(hashlib.sha256(data).digest())
        frame = read_image(data, limits, name)
        width, height = reduced_size(frame, reduction)
        left -= width * height / 1e6
        if left < 0:
            raise ImageError(f"{name}: all frames have more than {limits.clip_megapixels:,g} megapixels together")
        return frame

    return read_frames(files, rate, read, reduction=reduction), digest.hexdigest()
