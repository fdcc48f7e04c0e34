"""Decodes a video in a process of its own, whose memory and processor time are limited whatever the file claims.

A kilobyte of MP4 can claim samples whose index takes gigabytes, and decoders are large programs that meet files of
strangers: what becomes of them ends this process alone. It reads the file from its standard input and writes each
sampled frame, its ``HEADER`` first, to its standard output; the reason of a failure is on its standard error.

This file is run as a script, which loads PyAV once and forks a process for each video (``serve``): to load it takes
half a second, to fork a few milliseconds. What a video does to its process ends with it. The script imports nothing of
k2jax.
"""

from __future__ import annotations

from collections.abc import Iterator
import io
import json
import os
import resource
import socket
import struct
import sys

import numpy as np

SAMPLED_PER_SECOND = 2.0
MOST_FRAMES = 100_000
"""Frames of a video before sampling."""
MEMORY_BYTES = 2 << 30
"""Of the process; frames of 90 megapixels need half of it."""
THREADS = 4
REFUSED = 3
"""Exit code where the file is at fault."""
HEADER = struct.Struct("<dII")
"""Time of a frame [seconds], its height and its width; RGB bytes row by row follow."""
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


def decoded(data: bytes, megapixels: float) -> Iterator[tuple[float, np.ndarray]]:
    """Times and pixels uint8 ``[height, width, 3]`` of the sampled frames.

    The number of frames is counted from the packets, which a header need not state.

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
        count = sum(packet.size > 0 for packet in container.demux(stream))
        rate = float(stream.average_rate or SAMPLED_PER_SECOND)
        _check(count, stream.codec_context.width * stream.codec_context.height / 1e6, megapixels)
        container.seek(0)
        wanted = set(sampled_frames(count, rate).tolist())
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                _check(count, frame.width * frame.height / 1e6, megapixels)  # it may change within a file
                yield number / rate, frame.to_ndarray(format="rgb24")


def _check(count: int, pixels: float, megapixels: float) -> None:
    if not count:
        raise ValueError("it has no frame")
    if count > MOST_FRAMES or pixels > megapixels:
        most = f"at most {MOST_FRAMES:,} of {megapixels:g} are decoded"
        raise ValueError(f"it has {count:,} frames of {pixels:,.1f} megapixels; {most}")


def main(megapixels: float, seconds: int) -> int:
    """Decodes the standard input.

    Args:
        megapixels: largest frame [10^6 pixels].
        seconds: processor time [s], after which the process is killed.
    """
    for kind, wanted in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)  # which nothing may exceed
        resource.setrlimit(kind, (limit, limit))
    try:
        for time, pixels in decoded(sys.stdin.buffer.read(), megapixels):
            height, width, _ = pixels.shape
            sys.stdout.buffer.write(HEADER.pack(time, height, width) + np.ascontiguousarray(pixels).tobytes())
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
