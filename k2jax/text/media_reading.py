"""Who reads the images and video of messages: a reader takes them out of messages and places them among the tokens.

Whoever renders conversations knows no more of images than this. What is placed is the engine's, see
``inference.media.PlacedChunk``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from k2jax.errors import UserError
from k2jax.text.messages import Message

IMAGE_PART, VIDEO_PART = "image_url", "video"
"""Types of the parts of content that hold an image by its URL, or the frames of a video by theirs."""
NO_PAD = -1
"""In the place of a token that the model wrote: where it is a pad, no image stands for it."""


class MediaReading(Protocol):
    """The images of one conversation."""

    def read(self, message: Message) -> Message:
        """A message with a ``text.media.MediaSpan`` in place of each image and video.

        Raises:
            UserError: a part is malformed, damaged or beyond the limits.
        """

    def place(self, tokens: Sequence[int]) -> tuple[Any, ...]:
        """All images that were read, where they stand in the prompt, as the engine takes them.

        Args:
            tokens: ids of the prompt, with ``NO_PAD`` for those that the model wrote.

        Raises:
            PromptTooLongError: they are more than a training's row holds.
        """


class MediaReader(Protocol):
    """Reads the images of conversations; its methods may be called from any thread."""

    def start(self) -> MediaReading:
        """Begins to read those of a conversation."""


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
    """Begins to read the images of a conversation; without a reader every one is refused."""
    return TextAlone() if reader is None else reader.start()
