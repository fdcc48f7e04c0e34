"""Frames of clips: which are sampled, how they form chunks, and how PyAV decodes a file."""

from __future__ import annotations

from collections.abc import Sequence
import io
from typing import NamedTuple

import numpy as np
from PIL import Image

from k2jax.data.images.reading import FILE_LIMITS, ImageError, ReadLimits
from k2jax.errors import UserError, abbreviate

SAMPLED_PER_SECOND = 2.0
MOST_FRAMES = 100_000
"""Frames of a video before sampling."""


class Clip(NamedTuple):
    """Sampled frames of a video.

    Attributes:
        frames: in RGB and of one size, in order.
        times: time of each [seconds].
    """

    frames: Sequence[Image.Image]
    times: Sequence[float]


def sampled_frames(count: int, rate: float) -> np.ndarray:
    """Numbers of the frames that are sampled: two per second, the first and the last among them.

    A video of a lower rate keeps all its frames.

    Args:
        count: frames of the video.
        rate: its frames per second.
    """
    wanted = max(1, round(count * min(SAMPLED_PER_SECOND, rate) / rate))
    return np.linspace(0, count - 1, wanted).round().astype(int)


def sample_clip(frames: Sequence[Image.Image], rate: float) -> Clip:
    """Samples the frames of a video that are in memory.

    Args:
        frames: all of them.
        rate: frames per second.

    Raises:
        UserError: there is no frame, they differ in size, or the rate is not positive.
    """
    if not frames or rate <= 0 or len({frame.size for frame in frames}) > 1:
        raise UserError("a video needs frames of one size and a positive number of frames per second")
    numbers = sampled_frames(len(frames), rate)
    return Clip([frames[i].convert("RGB") for i in numbers], [i / rate for i in numbers])


def read_clip(data: bytes, limits: ReadLimits = FILE_LIMITS, name: str = "video") -> Clip:
    """Decodes a video file by PyAV (extra ``vision``) and keeps its sampled frames.

    The number of frames is counted from the packets, which a header need not state.

    Args:
        data: the file's bytes.
        limits: largest file and frame.
        name: what messages call it.

    Raises:
        UserError: PyAV is not installed.
        ImageError: the file is damaged, too large, has no picture or too many frames.
    """
    if len(data) > limits.megabytes * 1e6:
        raise ImageError(f"{name} has {len(data) / 1e6:,.1f} MB; at most {limits.megabytes:g} are read")
    try:
        import av
    except ImportError as error:
        raise UserError("videos are decoded by PyAV; install it with pip install 'k2jax[vision]'") from error
    try:
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.video[0]
            count = sum(packet.size > 0 for packet in container.demux(stream))
            rate = float(stream.average_rate or SAMPLED_PER_SECOND)
            megapixels = stream.codec_context.width * stream.codec_context.height / 1e6
            if not 0 < count <= MOST_FRAMES or megapixels > limits.megapixels:
                raise ImageError(
                    f"{name} has {count:,} frames of {megapixels:,.1f} megapixels; 1 to {MOST_FRAMES:,} of at most "
                    f"{limits.megapixels:g} are decoded"
                )
            container.seek(0)
            wanted = set(sampled_frames(count, rate).tolist())
            kept = [
                (number / rate, frame.to_image())
                for number, frame in enumerate(container.decode(stream))
                if number in wanted
            ]
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise ImageError(f"{name} cannot be decoded as a video: {abbreviate(str(error))}") from error
    if not kept:
        raise ImageError(f"{name} cannot be decoded as a video: it has no frame")
    times, frames = zip(*kept, strict=True)
    return Clip(frames, times)
