"""Images and video in messages, as far as the dialects know of them: a reader takes them out and places them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from k2jax.api.errors import ApiError
from k2jax.errors import UserError
from k2jax.text.messages import Message

IMAGE_PART, VIDEO_PART = "image_url", "video"
"""Types of the parts of content that hold an image by its URL, or the frames of a video by theirs."""

MOST_MEDIA_BYTES = 2 << 30
"""Patches of images that requests in progress hold, while there are several of them."""


class MediaReading(Protocol):
    """The images of one request."""

    def read(self, message: Message) -> Message:
        """A message with a ``text.media.MediaSpan`` in place of each image and video.

        Raises:
            UserError: a part is malformed, damaged or beyond the limits.
        """

    def place(self, tokens: Sequence[int]) -> tuple[Any, ...]:
        """All images that were read, where they stand in the prompt, as the engine takes them."""


class MediaReader(Protocol):
    """Reads the images of a server's requests; its methods may be called from any thread."""

    def start(self) -> MediaReading:
        """Begins to read those of a request."""


class TextAlone:
    """The images of a model that reads none: every one of them is refused."""

    def read(self, message: Message) -> Message:
        """The message itself; raises UserError where it has an image or a video."""
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list | tuple) else ():
            if isinstance(part, Mapping) and part.get("type") in (IMAGE_PART, VIDEO_PART):
                raise UserError("this model reads text alone; the message has images or video")
        return message

    def place(self, tokens: Sequence[int]) -> tuple[Any, ...]:
        """No images."""
        return ()


def start_reading(reader: MediaReader | None) -> MediaReading:
    """Begins to read the images of a request; without a reader every one is refused."""
    return TextAlone() if reader is None else reader.start()


def check_media_room(new: Sequence[Any], held: Iterable[Sequence[Any]]) -> None:
    """Raises ApiError 429 where a request's images do not fit beside those of the requests in progress.

    Args:
        new: images of the request, as ``MediaReading.place`` returns them.
        held: the images of each request in progress.
    """
    size = _media_bytes(new)
    if not size:
        return
    held_bytes = sum(map(_media_bytes, held))
    if held_bytes and held_bytes + size > MOST_MEDIA_BYTES:
        message = "too many images are waiting; try again later"
        raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})


def _media_bytes(media: Sequence[Any]) -> int:
    """Size of the patches of a request's images, which its choices share."""
    return sum(placed.chunk.pixels.nbytes for placed in media)
