"""Decodes a video in a process of its own, whose memory and processor time are limited whatever the file claims.

A kilobyte of MP4 can claim samples whose index takes gigabytes, and decoders are large programs that meet files of
strangers: what becomes of them ends this process alone. It reads the file from its standard input and writes each
sampled frame, reduced and its ``HEADER`` first, to its standard output; the reason of a failure is on its standard
error.

This file is run as a script, which loads PyAV once and forks a process for each video (``serve``): to load it takes
half a second, to fork a few milliseconds. What a video does to its process ends with it. The script imports nothing of
k2jax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import io
import json
import math
import os
import resource
import socket
import struct
import sys
from typing import Any

import numpy as np

SAMPLED_PER_SECOND = 2.0
MOST_PACKETS = 10_000_000
"""Frames of a video before sampling: four days of 30 a second."""
MOST_SAMPLED = 10_000
"""Frames that are sampled: more than an hour."""
MERGE = 2
"""Patches along each side of a frame that become one feature."""
MEMORY_BYTES = 2 << 30
"""Of the process; frames of 90 megapixels need half of it."""
THREADS = 4
REFUSED = 3
"""Exit code where the file is at fault."""
HEADER = struct.Struct("<dIIII")
"""Time of a frame [seconds], its height and width in the file, and reduced; RGB bytes row by row follow."""
NUMBER = struct.Struct("<q")
"""The answers to a request: the number of the process that was forked, and its exit code when it has ended."""
MOST_ARGUMENTS = 1024
"""Bytes of a request."""
CONTAINERS = "mov,matroska,avi,mpegts,mpeg,ogg,flv,gif,asf,apng"
"""FFmpeg's names of containers that hold their frames themselves; playlists name other files or addresses."""


def sampled_frames(count: int, rate: float) -> np.ndarray:
    """Numbers of the frames that are sampled: two per second, the first and the last among them.

    A video of a lower rate keeps all its frames.

    Args:
        count: frames of the video.
        rate: its frames per second.
    """
    wanted = max(1, round(count * min(SAMPLED_PER_SECOND, rate) / rate))
    return np.linspace(0, count - 1, wanted).round().astype(int)


def sampled_times(times: np.ndarray) -> np.ndarray:
    """Numbers of the frames that are sampled by their times: two per second, the first and the last among them.

    Args:
        times: float ``[frames]``, ascending [seconds]; the rate may vary.
    """
    span = times[-1] - times[0]
    if span <= 0 or np.diff(times).min() >= 1 / SAMPLED_PER_SECOND:
        return np.arange(len(times))
    rate = (len(times) - 1) / span
    wanted = max(1, round(round(len(times) * min(SAMPLED_PER_SECOND, rate) / rate, 6)))
    places = np.interp(np.linspace(times[0], times[-1], wanted), times, np.arange(len(times)))
    return np.unique(places.round().astype(int))


def reduced_sides(
    height: int, width: int, *, patch: int, patches: int, side: int, padded: int | None
) -> tuple[int, int]:
    """Height and width to which an image is reduced [pixels]; see ``resize.padded_size``."""
    count = max(1, height // patch) * max(1, width // patch)
    longest, step = side * patch, MERGE * patch
    scale = min(1.0, math.sqrt(patches / count), longest / height, longest / width)
    while True:
        sides = min(longest, max(1, int(height * scale))), min(longest, max(1, int(width * scale)))
        filled = math.prod(-(-each // step) * MERGE for each in sides)
        if padded is None or filled <= padded:
            return sides
        scale *= math.sqrt(padded / filled)


def decoded(data: bytes, megapixels: float) -> Iterator[tuple[float, np.ndarray]]:
    """Times and pixels uint8 ``[height, width, 3]`` of the sampled frames, upright as the camera was held.

    The number of frames is counted from the packets, which a header need not state, and before sampling it is bounded
    by the work alone.

    Args:
        data: the file's bytes.
        megapixels: largest frame [10^6 pixels].

    Raises:
        ValueError: there is no picture, or there are too many or too large ones.
        av.FFmpegError: the file is damaged.
    """
    import av

    # No protocol is opened: whatever the file names beside itself stays closed.
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "none"}
    with av.open(io.BytesIO(data), options=options) as container:
        if not container.streams.video:
            raise ValueError("it has no picture")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise ValueError("its codec is unknown")
        stream.codec_context.thread_count = THREADS
        times = _times(container, stream)
        _check_size(stream.codec_context.width, stream.codec_context.height, megapixels)
        chosen = sampled_times(times)
        if len(chosen) > MOST_SAMPLED:
            raise ValueError(f"{len(chosen):,} of its frames are sampled, and at most {MOST_SAMPLED:,} are kept")
        container.seek(0)
        wanted = set(chosen.tolist())
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                _check_size(frame.width, frame.height, megapixels)  # it may change within a file
                yield float(times[number]), np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)


def _times(container: Any, stream: Any) -> np.ndarray:
    """Times of all frames from the first, ascending [seconds]: those of the file, or by the mean rate if it has none.

    Raises:
        ValueError: there is no frame, or there are too many.
    """
    stamps: list[int | None] = []
    for packet in container.demux(stream):
        if packet.size > 0:
            stamps.append(packet.dts if packet.pts is None else packet.pts)
        if len(stamps) > MOST_PACKETS:
            raise ValueError(f"it has more than {MOST_PACKETS:,} frames")
    if not stamps:
        raise ValueError("it has no frame")
    if None in stamps or stream.time_base is None or len(set(stamps)) < len(stamps):
        return np.arange(len(stamps)) / float(stream.average_rate or SAMPLED_PER_SECOND)
    ordered = np.sort(np.array(stamps, np.int64))
    return (ordered - ordered[0]) * stream.time_base.numerator / stream.time_base.denominator


def _check_size(width: int, height: int, megapixels: float) -> None:
    if (pixels := width * height / 1e6) > megapixels:
        raise ValueError(f"it has frames of {pixels:,.1f} megapixels; at most {megapixels:g} are decoded")


def main(megapixels: float, seconds: int, reduction: Mapping[str, Any] | None) -> int:
    """Decodes the standard input.

    Args:
        megapixels: largest frame [10^6 pixels].
        seconds: processor time [s], after which the process is killed.
        reduction: keywords of ``reduced_sides``, to which frames are reduced before they are written.
    """
    from PIL import Image

    for kind, wanted in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)  # which nothing may exceed
        resource.setrlimit(kind, (limit, limit))
    try:
        for time, pixels in decoded(sys.stdin.buffer.read(), megapixels):
            size = pixels.shape[:2]
            sides = reduced_sides(*size, **reduction) if reduction else size
            if sides != size:
                pixels = np.asarray(Image.fromarray(pixels).resize(sides[::-1], Image.Resampling.BICUBIC))
            sys.stdout.buffer.write(HEADER.pack(time, *size, *sides) + np.ascontiguousarray(pixels).tobytes())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # who asked has read enough
        return REFUSED
    except Exception as error:  # PyAV raises a dozen types on damaged files
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        return REFUSED
    return 0


def serve(connection: socket.socket) -> None:
    """Forks a process for each request until the other end is closed.

    A request is the arguments of ``main`` in JSON, with three open files: the video, and where frames and the reason of
    a failure go.

    Args:
        connection: of a pair of sockets.
    """
    import av  # noqa: F401  # once for all processes
    from PIL import Image  # noqa: F401

    while True:
        request, files, _, _ = socket.recv_fds(connection, MOST_ARGUMENTS, 3)
        if not request:
            return
        process = os.fork()
        if not process:
            code = 1
            try:
                connection.close()
                for standard, file in enumerate(files):
                    os.dup2(file, standard)
                    os.close(file)
                code = main(**json.loads(request))
                sys.stderr.flush()
            finally:
                os._exit(code)
        for file in files:
            os.close(file)
        connection.sendall(NUMBER.pack(process))
        _, status = os.waitpid(process, 0)
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        serve(parent)
