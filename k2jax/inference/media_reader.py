"""Reads the images that messages themselves hold, for whoever samples after them or trains on them."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.client import PromptTooLongError
from k2jax.data.images.packing import PatchChunk
from k2jax.data.images.processor import ImageProcessor
from k2jax.inference.media import PlacedChunk, place_chunks
from k2jax.text.media import MEDIA_PAD
from k2jax.text.messages import Message
from k2jax.text.tokenizer import Tokenizer


class ImageReader:
    """Reads the images of messages; see ``text.media_reading.MediaReader``.

    Args:
        processor: cuts images into patches.
        most: patches of the images of a conversation, equal ones counted once; None if there is no limit.
        tokenizer: its vocabulary, with the special tokens of media.

    Raises:
        UserError: it has none.
    """

    def __init__(self, processor: ImageProcessor, tokenizer: Tokenizer, most: int | None = None):
        self._processor, self._pad, self._most = processor, tokenizer.special_id(MEDIA_PAD), most

    def start(self) -> _Reading:
        """Begins to read the images of a conversation."""
        return _Reading(self._processor, self._pad, self._most)


class _Reading:
    """The images of one conversation; see ``text.media_reading.MediaReading``."""

    def __init__(self, processor: ImageProcessor, pad: int, most: int | None):
        self._processor, self._pad, self._most = processor, pad, most
        self._chunks: list[PatchChunk] = []

    def read(self, message: Message) -> Message:
        """See ``MediaReading.read``."""
        prepared = self._processor.prepare([message])
        self._chunks += prepared.chunks
        return prepared.messages[0]

    def place(self, tokens: Sequence[int]) -> tuple[PlacedChunk, ...]:
        """See ``MediaReading.place``."""
        placed = place_chunks(tokens, self._chunks, self._pad) if self._chunks else ()
        patches = sum({each.digest: each.chunk.patches for each in placed}.values())
        if self._most is not None and patches > self._most:
            raise PromptTooLongError(
                f"images of {patches:,} patches, more than the {self._most:,} of config.data.images.patches"
            )
        return placed
