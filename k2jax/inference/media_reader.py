"""Reads the images that messages themselves hold, for whoever samples after them or trains on them."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.config.schema import VisionConfig
from k2jax.data.images.packing import PatchChunk
from k2jax.data.images.processor import ImageProcessor
from k2jax.inference.media import PlacedChunk, place_chunks
from k2jax.text.media import MEDIA_PAD
from k2jax.text.messages import Message
from k2jax.text.tokenizer import Tokenizer


class ImageReader:
    """Reads images in data URLs; see ``text.media_reading.MediaReader``. Paths and other URLs are not opened.

    Args:
        vision: sizes of patches and chunks.
        tokenizer: its vocabulary, with the special tokens of media.

    Raises:
        UserError: it has none.
    """

    def __init__(self, vision: VisionConfig, tokenizer: Tokenizer):
        self._processor, self._pad = ImageProcessor(vision, open_urls=False), tokenizer.special_id(MEDIA_PAD)

    def start(self) -> _Reading:
        """Begins to read the images of a conversation."""
        return _Reading(self._processor, self._pad)


class _Reading:
    """The images of one conversation; see ``text.media_reading.MediaReading``."""

    def __init__(self, processor: ImageProcessor, pad: int):
        self._processor, self._pad = processor, pad
        self._chunks: list[PatchChunk] = []

    def read(self, message: Message) -> Message:
        """See ``MediaReading.read``."""
        prepared = self._processor.prepare([message])
        self._chunks += prepared.chunks
        return prepared.messages[0]

    def place(self, tokens: Sequence[int]) -> tuple[PlacedChunk, ...]:
        """See ``MediaReading.place``."""
        return place_chunks(tokens, self._chunks, self._pad) if self._chunks else ()
