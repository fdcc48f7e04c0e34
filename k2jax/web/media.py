"""The images and videos of a server's requests: read within limits, and never from the server's own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import threading
from typing import Any, NamedTuple

from PIL import Image

from k2jax.config.schema import VisionConfig
from k2jax.data.images.frames import Clip, frame_numbers, listed_clip
from k2jax.data.images.limits import PUBLISHED, ProcessorLimits
from k2jax.data.images.packing import PatchChunk
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.images.reading import ImageError, ReadLimits, decode_data_url, is_data_url, read_image
from k2jax.errors import abbreviate
from k2jax.inference.media import PlacedChunk, place_chunks
from k2jax.text.media import MediaSpan
from k2jax.text.media_reading import IMAGE_PART, VIDEO_PART
from k2jax.text.messages import Message
from k2jax.web.download import DownloadLimits, download

DECODERS = 2
"""Images that are decoded at a time, each of which may need tens of bytes a pixel."""


class MediaLimits(NamedTuple):
    """What a request may hold.

    Attributes:
        images: most images and frames of video.
        megapixels: of all of them together, before they are reduced [10^6 pixels].
        files: largest file, and the hosts that files are downloaded from.
    """

    images: int = 64
    megapixels: float = 50.0
    files: DownloadLimits = DownloadLimits()


class ServedMedia:
    """Reads images from data URLs and from allowed hosts; see ``text.media_reading.MediaReader``.

    Args:
        vision: sizes of patches and chunks.
        pad: id of the token that stands for a feature.
        limits: of a request.
        reduced: what images and frames are reduced to.
    """

    def __init__(
        self,
        vision: VisionConfig,
        pad: int,
        limits: MediaLimits,
        reduced: ProcessorLimits = PUBLISHED,
    ):
        self.vision, self.pad, self.limits = vision, pad, limits
        self.processor = ImageProcessor(vision, limits=reduced, open_urls=False)
        self.decoders = threading.BoundedSemaphore(DECODERS)

    def start(self) -> RequestMedia:
        """Begins to read the images of a request."""
        return RequestMedia(self)


class RequestMedia:
    """The images of one request; see ``text.media_reading.MediaReading``."""

    def __init__(self, reader: ServedMedia):
        self._reader = reader
        self._chunks: list[PatchChunk] = []
        self._images, self._megapixels = 0, 0.0

    def read(self, message: Message) -> Message:
        """A message with MediaSpans in place of its images and videos.

        An image is ``{"type": "image_url", "image_url": {"url": …}}``, as in OpenAI's format; a video is
        ``{"type": "video", "video": [URL, …], "fps": …}``, one URL for each frame.

        Raises:
            ImageError: a part is malformed, damaged or beyond the limits.
        """
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            return message
        return {**message, "content": [self._part(part) for part in content]}

    def place(self, tokens: Sequence[int]) -> tuple[PlacedChunk, ...]:
        """All images, where they stand in the prompt."""
        return place_chunks(tokens, self._chunks, self._reader.pad) if self._chunks else ()

    def _part(self, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == IMAGE_PART:
            value = part.get(IMAGE_PART)
            image = self._image(value.get("url") if isinstance(value, Mapping) else value)
            return self._span("image", [self._reader.processor.image(image)])
        if kind == VIDEO_PART:
            clip = self._clip(part.get(VIDEO_PART), part.get("fps"))
            times = tuple(clip.times[:: self._reader.vision.frames])
            return self._span("video", self._reader.processor.clip(clip), times)
        return part

    def _span(self, kind: Any, chunks: list[PatchChunk], times: tuple[float, ...] = ()) -> MediaSpan:
        self._chunks += chunks
        return MediaSpan(kind, tuple(chunk.features for chunk in chunks), times)

    def _clip(self, urls: Any, rate: Any) -> Clip:
        """The sampled frames of a video; the others are not decoded."""
        numbers = frame_numbers(urls, rate)
        self._check_count(len(numbers))  # before the first is decoded
        return listed_clip([self._image(urls[number]) for number in numbers], numbers, rate)

    def _check_count(self, new: int) -> None:
        most = self._reader.limits.images
        if self._images + new > most:
            raise ImageError(f"a request may have {most} images and frames of video, not {self._images + new}")

    def _image(self, url: Any) -> Image.Image:
        limits = self._reader.limits
        self._check_count(1)
        self._images += 1
        name = f"image {self._images}"
        if not isinstance(url, str):
            raise ImageError(f"{name} needs a URL, not {abbreviate(url)}")
        data = decode_data_url(url) if is_data_url(url) else download(url, limits.files, name)
        left = ReadLimits(limits.files.megabytes, limits.megapixels - self._megapixels)
        with self._reader.decoders:
            image = read_image(data, left, name)
        self._megapixels += image.width * image.height / 1e6
        return image
