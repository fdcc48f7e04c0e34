"""Images and chunks of video in prompts: the tokens that they stand for, and what identifies their content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import hashlib
import itertools
from typing import Any, NamedTuple

import numpy as np

from k2jax.config.schema import ModelConfig
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.errors import UserError


class PlacedChunk(NamedTuple):
    """An image, or a chunk of video, and the tokens of a prompt that it stands for.

    Attributes:
        start: index of the first of its tokens.
        chunk: its patches; it stands for ``chunk.features`` tokens.
        digest: 16 bytes of its content, see ``content_digest``.
    """

    start: int
    chunk: PatchChunk
    digest: bytes

    @property
    def stop(self) -> int:
        """One past the index of its last token."""
        return self.start + self.chunk.features


def content_digest(chunk: PatchChunk) -> bytes:
    """16 bytes that two chunks have in common only where their grids and all their pixels are equal."""
    digest = hashlib.blake2b(np.asarray(chunk.grid, np.int64).tobytes(), digest_size=16)
    digest.update(np.ascontiguousarray(chunk.pixels, np.float32).data)
    return digest.digest()


def place_chunks(tokens: Sequence[int], chunks: Sequence[PatchChunk], pad: int) -> tuple[PlacedChunk, ...]:
    """Finds the tokens that images and chunks of video stand for: each a run of pads, in order.

    Args:
        tokens: ids of a prompt.
        chunks: of ``ImageProcessor.prepare``.
        pad: id of the pad.

    Raises:
        UserError: pads and features of an image or chunk differ in number; it says which.
    """
    from k2jax.data.images.processor import feature_index  # reads images, which needs the extra vision

    ends = np.cumsum([0, *(chunk.features for chunk in chunks)])
    numbers = [np.arange(*pair) for pair in itertools.pairwise(ends)]
    places = np.flatnonzero(feature_index(tokens, pad, numbers) >= 0)
    return tuple(
        PlacedChunk(int(places[first]), chunk, content_digest(chunk))
        for first, chunk in zip(ends[:-1], chunks, strict=True)
    )


def placed_chunk(image: Any) -> PlacedChunk:
    """An image of a request from another process, an ``agents.collect.wire_messages.SentImage``."""
    return PlacedChunk(image.start, PatchChunk(image.pixels, image.grid), image.digest)


def check_media(media: Sequence[PlacedChunk], prompt: int, model: ModelConfig) -> None:
    """Raises UserError for images that a model cannot read, or that do not lie one after the other in the prompt.

    Args:
        media: of a request.
        prompt: tokens of its prompt.
        model: the architecture.
    """
    channels = 3 * model.vision.patch**2
    end = 0
    for number, placed in enumerate(media, 1):
        if not end <= placed.start < placed.stop <= prompt:
            raise UserError(
                f"image or chunk of video {number} stands for tokens {placed.start} to {placed.stop}, which are not "
                f"between its predecessor's {end} and the prompt's end {prompt}"
            )
        frames, end = placed.chunk.grid[0], placed.stop
        if placed.chunk.pixels.shape != (placed.chunk.patches, channels) or frames > model.vision.frames:
            raise UserError(
                f"image or chunk of video {number} has {frames} frames of patches {placed.chunk.pixels.shape}; the "
                f"model takes at most {model.vision.frames}, of {channels} numbers a patch"
            )


def within(media: Sequence[PlacedChunk], start: int, stop: int) -> Iterator[PlacedChunk]:
    """Those of whose tokens some are among ``start`` to ``stop``."""
    return (placed for placed in media if placed.start < stop and start < placed.stop)


def content_of(media: Sequence[PlacedChunk], start: int, stop: int) -> bytes:
    """What the tokens ``start`` to ``stop`` show beside their ids: digests and places of images, empty for text."""
    return b"".join(
        (placed.start - start).to_bytes(8, "little", signed=True) + placed.digest
        for placed in within(media, start, stop)
    )
