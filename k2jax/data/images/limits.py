"""What images and frames of clips are reduced to. It needs no package that reads images."""

from __future__ import annotations

from typing import NamedTuple

from k2jax.config.schema import ImagesConfig
from k2jax.data.images.video_process import MERGE

FRAME_PATCHES = 4096
"""Most patches of a frame of a clip."""


class ResizeLimits(NamedTuple):
    """What an image is reduced to; it is never enlarged.

    Attributes:
        patches: most patches before padding.
        side: most patches of a side.
        padded: most patches after padding, at least four; None if there is no such limit.
    """

    patches: int = 16384
    side: int = 512
    padded: int | None = None


class ProcessorLimits(NamedTuple):
    """What a model's images are reduced to; the defaults are those that Kimi K2.5 publishes.

    Attributes:
        images: of an image.
        frames: of a frame of a clip.
    """

    images: ResizeLimits = ResizeLimits()
    frames: ResizeLimits = ResizeLimits(FRAME_PATCHES)


PUBLISHED = ProcessorLimits()
"""Those of Kimi K2.5."""


def run_limits(images: ImagesConfig, frames: int) -> ProcessorLimits:
    """The limits of a run: an image, and a chunk of a clip, fits a row of its patches with its padding.

    Args:
        images: sizes of the run.
        frames: most frames of a chunk.
    """
    return ProcessorLimits(
        ResizeLimits(images.image_patches, padded=images.patches),
        ResizeLimits(FRAME_PATCHES, padded=max(MERGE**2, images.patches // frames)),
    )
