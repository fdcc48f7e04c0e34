"""Images and clips that are not decoded: what tokens and rows of patches depend on is their size alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from PIL import Image

from k2jax.data.images.frames import Clip


class MeasuredMedia(NamedTuple):
    """What was measured of an image or a clip; it stands in a message in its place.

    Attributes:
        size: width and height [pixels].
        times: of a clip's sampled frames [seconds]; an image has none.
    """

    size: tuple[int, int]
    times: tuple[float, ...] = ()

    @classmethod
    def of(cls, media: Image.Image | Clip) -> MeasuredMedia:
        """Measures what is decoded."""
        if isinstance(media, Clip):
            return cls(media.size, tuple(media.times))
        return cls(media.size)

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> MeasuredMedia:
        """Of the JSON list that a tuple becomes."""
        (width, height), times = value
        return cls((width, height), tuple(times))

    def chunks(self, frames: int) -> int:
        """Chunks of at most so many frames; an image is one."""
        return -(-len(self.times) // frames) or 1


def not_needed(media: Sequence[MeasuredMedia], frames: int, needed: Collection[int]) -> dict[int, MeasuredMedia]:
    """The media of a conversation of which no chunk is needed, by their numbers.

    Args:
        media: all of them, in order.
        frames: most frames of a chunk.
        needed: numbers of chunks, counted over the conversation.
    """
    first, left = 0, {}
    for number, each in enumerate(media):
        stop = first + each.chunks(frames)
        if not any(chunk in needed for chunk in range(first, stop)):
            left[number] = each
        first = stop
    return left
