"""From an image to patches: the size that Kimi K2.5 gives it, bicubic resampling, black padding, normalisation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image

from k2jax.data.images.limits import MERGE, PUBLISHED, ResizeLimits
from k2jax.data.images.video_process import reduced_sides


class PaddedSize(NamedTuple):
    """Size of an image before and after padding [pixels].

    Attributes:
        height: of the resampled image.
        width: of the resampled image.
        padded_height: with black below, a multiple of two patches.
        padded_width: with black on the right, a multiple of two patches.
    """

    height: int
    width: int
    padded_height: int
    padded_width: int


def padded_size(height: int, width: int, patch: int, limits: ResizeLimits = PUBLISHED.images) -> PaddedSize:
    """Sizes of an image within the limits; both sides shrink by the same factor.

    Whole patches are counted before padding, which may therefore exceed ``limits.patches`` a little: an image of
    512 x 32 patches and a part of one more is padded to 512 x 34. Where ``limits.padded`` is given, the image shrinks
    until it fits with its padding.

    Args:
        height: of the image [pixels].
        width: of the image [pixels].
        patch: side of a patch [pixels].
        limits: what it is reduced to.
    """
    sides = reduced_sides(height, width, patch=patch, **limits._asdict())
    return PaddedSize(*sides, *(-(-side // (MERGE * patch)) * MERGE * patch for side in sides))


def to_patches(
    image: Image.Image, patch: int, limits: ResizeLimits = PUBLISHED.images, original: tuple[int, int] | None = None
) -> tuple[np.ndarray, int, int]:
    """Resamples, pads and cuts an image.

    Args:
        image: in RGB.
        patch: side of a patch [pixels].
        limits: what it is reduced to.
        original: width and height that decide its size, of one that is reduced already; None are its own.

    Returns:
        Patches float32 ``[height * width, 3 * patch * patch]`` in [-1, 1], row by row and each colour by colour, and
        height and width in patches.
    """
    width, height = original or image.size
    size = padded_size(height, width, patch, limits)
    if (size.width, size.height) != image.size:
        image = image.resize((size.width, size.height), Image.Resampling.BICUBIC)
    pixels = np.zeros((size.padded_height, size.padded_width, 3), np.float32)
    pixels[: size.height, : size.width] = np.asarray(image)
    rows, columns = size.padded_height // patch, size.padded_width // patch
    cut = (pixels / 127.5 - 1).reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cut).reshape(rows * columns, 3 * patch * patch), rows, columns
