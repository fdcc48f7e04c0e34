"""How many patches of images the requests in progress may hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from k2jax.agents.api.api_error import ApiError

MAX_MEDIA_BYTES = 2 << 30
"""Patches of images that requests in progress hold, while there are several of them."""


def check_media_room(new: Sequence[Any], held: Iterable[Sequence[Any]]) -> None:
    """Raises ApiError 429 where a request's images do not fit beside those of the requests in progress.

    Args:
        new: images of the request, as ``text.media_reading.MediaReading.place`` returns them.
        held: the images of each request in progress.
    """
    size = _media_bytes(new)
    if not size:
        return
    held_bytes = sum(map(_media_bytes, held))
    if held_bytes and held_bytes + size > MAX_MEDIA_BYTES:
        message = "too many images are waiting; try again later"
        raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})


def _media_bytes(media: Sequence[Any]) -> int:
    """Size of the patches of a request's images, which its choices share."""
    return sum(placed.chunk.pixels.nbytes for placed in media)
