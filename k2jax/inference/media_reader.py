"""Reads the images and videos that messages themselves hold, for whoever samples after them or trains on them.

Messages may be hostile: a request of a client, or of an agent in a sandbox. Nothing is decoded beyond the limits of a
conversation, and never a file of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import threading
from typing import Any, NamedTuple

from PIL import Image

from k2jax.client import PromptTooLongError
from k2jax.data.images.frames import Clip, read_frames
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.images.reading import FILE_LIMITS, ImageError, ReadLimits, decode_data_url, is_data_url, read_image
from k2jax.errors import abbreviate
from k2jax.inference.media import PlacedChunk, content_digest, place_chunks
from k2jax.text.media import MEDIA_PAD, MediaSpan
from k2jax.text.media_reading import IMAGE_PART, VIDEO_PART
from k2jax.text.messages import Message
from k2jax.text.tokenizer import Tokenizer

DECODERS = 2
"""Images that are decoded at a time, each of which may need tens of bytes a pixel."""


class MediaLimits(NamedTuple):
    """What a conversation may hold.

    Attributes:
        images: most images and frames of video.
        megapixels: of all of them together, before they are reduced [10^6 pixels]; each also has ``FILE_LIMITS``.
        megabytes: largest file [10^6 bytes].
        patches: of all of them together, equal ones counted once; None if there is no limit.
    """

    images: int = 64
    megapixels: float = 50.0
    megabytes: float = FILE_LIMITS.megabytes
    patches: int | None = None


Download = Callable[[str, str], bytes]
"""The bytes of a file by its URL, and by what messages call it; raises ImageError where it is not opened."""


def refuse_download(url: str, name: str) -> bytes:
    """Opens nothing."""
    raise ImageError(f"{name} must come in a data URL; {abbreviate(url, 40)} is not opened here")


class ImageReader:
    """Reads the images of conversations; see ``text.media_reading.MediaReader``.

    Args:
        processor: cuts images into patches.
        tokenizer: its vocabulary, with the special tokens of media.
        limits: of a conversation.
        download: opens what is no data URL.

    Raises:
        UserError: the vocabulary has no tokens of media.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        tokenizer: Tokenizer,
        limits: MediaLimits = MediaLimits(),  # noqa: B008  (immutable)
        download: Download = refuse_download,
    ):
        self.processor, self.pad = processor, tokenizer.special_id(MEDIA_PAD)
        self.limits, self.download = limits, download
        self.files = ReadLimits(limits.megabytes, min(limits.megapixels, FILE_LIMITS.megapixels))
        self.decoders = threading.BoundedSemaphore(DECODERS)

    def start(self) -> _Reading:
        """Begins to read the images of a conversation."""
        return _Reading(self)


class _Reading:
    """The images of one conversation; see ``text.media_reading.MediaReading``."""

    def __init__(self, reader: ImageReader):
        self._reader = reader
        self._chunks: list[PatchChunk] = []
        self._patches: dict[bytes, int] = {}  # of every content
        self._images, self._megapixels = 0, 0.0

    def read(self, message: Message) -> Message:
        """A message with MediaSpans in place of its images and videos.

        An image is ``{"type": "image_url", "image_url": {"url": …}}``, as in OpenAI's format; a video is
        ``{"type": "video", "video": [URL, …], "fps": …}``, one URL for each frame.

        Raises:
            ImageError: a part is malformed or damaged, or one image is beyond the limits.
            PromptTooLongError: they are more than the limits allow together.
        """
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            return message
        return {**message, "content": [self._part(part) for part in content]}

    def place(self, tokens: Sequence[int]) -> tuple[PlacedChunk, ...]:
        """See ``MediaReading.place``."""
        return place_chunks(tokens, self._chunks, self._reader.pad) if self._chunks else ()

    def _part(self, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == IMAGE_PART:
            value = part.get(IMAGE_PART)
            image = self._image(value.get("url") if isinstance(value, Mapping) else value)
            return self._span("image", [self._reader.processor.image(image)])
        if kind == VIDEO_PART:
            clip = self._clip(part.get(VIDEO_PART), part.get("fps"))
            return self._span("video", *self._reader.processor.timed_clip(clip))
        return part

    def _span(self, kind: Any, chunks: list[PatchChunk], times: tuple[float, ...] = ()) -> MediaSpan:
        limit = self._reader.limits.patches
        if limit is not None:
            self._patches |= {content_digest(chunk): chunk.patches for chunk in chunks}
            if (patches := sum(self._patches.values())) > limit:
                raise PromptTooLongError(
                    f"images of {patches:,} patches, more than the {limit:,} of config.data.images.patches"
                )
        self._chunks += chunks
        return MediaSpan(kind, tuple(chunk.features for chunk in chunks), times)

    def _clip(self, urls: Any, rate: Any) -> Clip:
        """The sampled frames of a video; the others are not decoded."""
        return read_frames(urls, rate, lambda url, _: self._image(url), before=self._check_count)

    def _check_count(self, new: int) -> None:
        limit = self._reader.limits.images
        if self._images + new > limit:
            raise PromptTooLongError(
                f"a conversation may have {limit:,} images and frames of video, not {self._images + new:,}"
            )

    def _image(self, url: Any) -> Image.Image:
        limits = self._reader.limits
        self._check_count(1)
        self._images += 1
        name = f"image {self._images}"
        if not isinstance(url, str):
            raise ImageError(f"{name} needs a URL, not {abbreviate(url)}")
        data = decode_data_url(url) if is_data_url(url) else self._reader.download(url, name)
        with self._reader.decoders:
            image = read_image(data, self._reader.files, name)
        self._megapixels += image.width * image.height / 1e6
        if self._megapixels > limits.megapixels:
            raise PromptTooLongError(
                f"the images of a conversation may have {limits.megapixels:g} megapixels in all, and with {name} they "
                f"have {self._megapixels:,.1f}"
            )
        return image
