"""Frames of clips: which are sampled, and how a file's are decoded by PyAV in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
import signal
import tempfile
from typing import Any, NamedTuple

from PIL import Image

from k2jax.data.images.decoders import DECODERS
from k2jax.data.images.reading import FILE_LIMITS, ImageError, MediaUnavailableError, ReadLimits, check_size
from k2jax.data.images.video_process import HEADER, reduced_sides, sampled_frames
from k2jax.errors import abbreviate

FRAME_RATES = (0.001, 1000.0)
"""Lowest and highest number of frames per second of a video that is a list of frames [1/s]."""


class Clip(NamedTuple):
    """Sampled frames of a video.

    Attributes:
        frames: in RGB and of one size, in order.
        times: time of each [seconds].
    """

    frames: Sequence[Image.Image]
    times: Sequence[float]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of each frame in the file [pixels]."""
        return self.frames[0].size


class ReducedClip(Clip):
    """A clip whose frames are reduced already, of another size in the file."""

    def __new__(cls, frames: Sequence[Image.Image], times: Sequence[float], size: tuple[int, int]) -> ReducedClip:
        """Frames and their times, and width and height of each in the file [pixels]."""
        clip = super().__new__(cls, frames, times)
        clip._size = size
        return clip

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of each frame in the file [pixels]."""
        return self._size


def read_frames(
    files: Any,
    rate: Any,
    read: Callable[[Any, str], Image.Image],
    before: Callable[[int], None] = lambda count: None,
    reduction: Mapping[str, Any] | None = None,
) -> Clip:
    """The clip of a video that comes as a list of frames, of which the sampled ones alone are read.

    Args:
        files: each of them, or the path or URL of each.
        rate: frames per second.
        read: reads one in RGB; its second argument is what messages call it.
        before: is called with the number of frames that will be read, and may refuse it.
        reduction: as of ``read_clip``.

    Raises:
        ImageError: it is no list or empty, the rate is no number within ``FRAME_RATES``, or the frames differ in size.
    """
    if not isinstance(files, list | tuple) or not files:
        raise ImageError("video must be a list with the URL of each frame")
    low, high = FRAME_RATES
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not low <= rate <= high:
        raise ImageError(f"a video needs its number of frames per second in fps, from {low:g} to {high:g}")
    numbers = sampled_frames(len(files), rate).tolist()
    before(len(numbers))
    sizes, frames = set(), []
    for number in numbers:
        frame = read(files[number], f"frame {number + 1} of the video")
        sizes.add(frame.size)
        size = reduced_size(frame, reduction)
        frames.append(frame if size == frame.size else frame.resize(size, Image.Resampling.BICUBIC))
    if len(sizes) > 1:
        raise ImageError("the frames of a video must have one size")
    times = [number / rate for number in numbers]
    return ReducedClip(frames, times, sizes.pop()) if reduction else Clip(frames, times)


def reduced_size(frame: Image.Image, reduction: Mapping[str, Any] | None) -> tuple[int, int]:
    """Width and height to which a frame is reduced [pixels]; its own without a reduction."""
    return reduced_sides(frame.height, frame.width, **reduction)[::-1] if reduction else frame.size


def read_clip(
    data: bytes, limits: ReadLimits = FILE_LIMITS, name: str = "video", reduction: Mapping[str, Any] | None = None
) -> Clip:
    """Decodes a video file by PyAV (extra ``vision``) and keeps its sampled frames.

    A process of its own does so (``video_process``).

    Args:
        data: the file's bytes.
        limits: largest file, frame and clip, and the time to decode it.
        name: what messages call it.
        reduction: keywords of ``reduced_sides``, to which frames are reduced where they are decoded, so that an hour of
            them is held; None keeps their sizes.

    Raises:
        MediaUnavailableError: PyAV is not installed, or the program that uses it does not run.
        ImageError: the file is damaged, beyond the limits, has no picture or too many frames.
    """
    check_size(len(data), limits, name)
    if find_spec("av") is None:
        raise MediaUnavailableError("videos are decoded by PyAV; install it with pip install 'k2jax[vision]'")
    kept, pixels = [], 0.0
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as errors:
        file.write(data)
        file.seek(0)
        arguments = {"megapixels": limits.megapixels, "seconds": limits.seconds, "reduction": reduction}
        with DECODERS.decoder(arguments, file, errors) as decoder:
            for time, size, frame in _frames(decoder.output):
                pixels += frame.width * frame.height / 1e6
                if pixels > limits.clip_megapixels:
                    decoder.kill()
                    raise ImageError(
                        f"{name} has more than {limits.clip_megapixels:,g} megapixels in its sampled frames; make "
                        "them smaller or the video shorter"
                    )
                kept.append((time, size, frame))
        errors.seek(0)
        why = _failure(decoder.code, errors.read().decode(errors="replace"), limits)
    if why or not kept or len({size for _, size, _ in kept}) > 1:
        why = why or ("its frames differ in size" if kept else "it has no frame")
        raise ImageError(f"{name} cannot be decoded as a video: {abbreviate(why)}")
    times, sizes, frames = zip(*kept, strict=True)
    return ReducedClip(frames, times, sizes[0]) if reduction else Clip(frames, times)


def _frames(pipe: Any) -> Iterator[tuple[float, tuple[int, int], Image.Image]]:
    """Times, sizes in the file and frames that the process writes, until it ends."""
    while len(header := pipe.read(HEADER.size)) == HEADER.size:
        time, *original, height, width = HEADER.unpack(header)
        pixels = pipe.read(height * width * 3)
        if len(pixels) < height * width * 3:
            return
        yield time, tuple(original[::-1]), Image.frombytes("RGB", (width, height), pixels)


def _failure(code: int, written: str, limits: ReadLimits) -> str:
    """Why the process failed, in words; empty where it did not."""
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"its decoder was killed; it may use {limits.seconds} s of processor time"
    if code < 0:
        return f"its decoder was ended by {signal.Signals(-code).name}"
    lines = written.strip().splitlines()
    return (lines[-1] if lines else f"its decoder ended with exit code {code}") if code else ""
