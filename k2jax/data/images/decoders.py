"""Starts decoders of videos: one program that has loaded PyAV forks a process for each video (``video_process``)."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any

from k2jax.data.images import video_process
from k2jax.data.images.reading import MediaUnavailableError
from k2jax.data.images.video_process import NUMBER
from k2jax.errors import abbreviate
from k2jax.files.child_environment import child_environment


class VideoDecoder:
    """A process that decodes one video.

    Attributes:
        output: what it writes, until it ends.
        code: its exit code, once it has ended; negative for a signal's number.
    """

    def __init__(self, process: int, output: IO[bytes]):
        self._process, self.output, self.code = process, output, 0

    def kill(self) -> None:
        """Ends it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)


class DecoderProgram:
    """The program that forks decoders, started when the first video is read; one video is decoded at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._program: subprocess.Popen | None = None
        self._connection: socket.socket | None = None
        self._owner = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the program

    @contextlib.contextmanager
    def decoder(self, arguments: dict[str, Any], file: IO[bytes], errors: IO[bytes]) -> Iterator[VideoDecoder]:
        """A decoder that has begun; it has ended when this is left.

        Args:
            arguments: of ``video_process.main``.
            file: the video.
            errors: receives what it says of a failure.

        Raises:
            MediaUnavailableError: the program does not run.
        """
        with self._lock:
            connection = self._running()
            reader, writer = os.pipe()
            with open(reader, "rb") as output:
                files = [file.fileno(), writer, errors.fileno()]
                try:
                    socket.send_fds(connection, [json.dumps(arguments).encode()], files)
                    process = self._number(connection)
                except OSError:
                    raise self._ended() from None
                finally:
                    os.close(writer)
                decoder = VideoDecoder(process, output)
                try:
                    yield decoder
                finally:
                    output.close()  # it ends a decoder that goes on
                    decoder.code = self._number(connection)

    def close(self) -> None:
        """Ends the program."""
        if self._connection is not None:
            self._connection.close()
        if self._program is not None and self._owner == os.getpid():
            self._program.wait()
        self._program = self._connection = None

    def _running(self) -> socket.socket:
        """The connection to the program, which is started where it does not run; a forked process has its own."""
        if self._connection is None or self._owner != os.getpid():
            self._errors.truncate(0)  # what an earlier program said is not this one's
            self._connection, other = socket.socketpair()
            command = [sys.executable, "-P", str(Path(video_process.__file__)), str(other.fileno())]
            # Threads of OpenBLAS would take of a decoder's memory.
            environment = child_environment() | {"OPENBLAS_NUM_THREADS": "1"}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": self._errors}
            self._program = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()], **pipes)
            self._owner = os.getpid()
            other.close()
            atexit.register(self.close)
        return self._connection

    def _number(self, connection: socket.socket) -> int:
        answer = connection.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(answer) < NUMBER.size:
            raise self._ended()
        return NUMBER.unpack(answer)[0]

    def _ended(self) -> MediaUnavailableError:
        """That the program has ended; the next video starts another."""
        self.close()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        why = f": {abbreviate(lines[-1])}" if lines else ""
        return MediaUnavailableError(f"the program that decodes videos has ended{why}")


DECODERS = DecoderProgram()
