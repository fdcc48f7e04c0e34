"""What a running command is given and what it writes, watched from the spawner's loop."""

from __future__ import annotations

from collections.abc import Sequence
import os
import selectors

CHUNK = 1 << 16


class CommandStreams:
    """The spawner's ends of a command's pipes, which are closed here.

    Args:
        selector: calls the functions that are registered with it.
        stdin: what to write the input to; None where that is a connection.
        outputs: where its outputs come, the error output last.
        data: its input.
        limit: bytes that are kept of each output.

    Attributes:
        truncated: whether an output was longer than that.
    """

    def __init__(
        self, selector: selectors.BaseSelector, stdin: int | None, outputs: Sequence[int], *, data: bytes, limit: int
    ):
        self._selector, self._stdin, self._input, self._limit = selector, stdin, memoryview(data), limit
        self._kept = {output: bytearray() for output in outputs}
        self._open = set(outputs)
        self.truncated = False
        for output in outputs:
            selector.register(output, selectors.EVENT_READ, lambda output=output: self._on_output(output))
        if stdin is not None:
            self._open.add(stdin)
            selector.register(stdin, selectors.EVENT_WRITE, self._on_input)

    def finish(self) -> tuple[bytes, bytes]:
        """Both outputs, when nothing can write to them any more; the first is empty where that is a connection."""
        for output in self._kept:
            while output in self._open and self._on_output(output):
                pass
        for descriptor in list(self._open):
            self._close(descriptor)
        *stdout, stderr = (bytes(kept) for kept in self._kept.values())
        return b"".join(stdout), stderr

    def _close(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _on_input(self) -> None:
        try:
            self._input = self._input[os.write(self._stdin, self._input[:CHUNK]) :] if self._input else self._input
        except BlockingIOError:
            return
        except OSError:  # nobody reads it
            self._input = memoryview(b"")
        if not self._input:
            self._close(self._stdin)

    def _on_output(self, output: int) -> bool:
        """Reads once; False at the end, and where nothing is there."""
        try:
            data = os.read(output, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close(output)
            return False
        kept = self._kept[output]
        room = self._limit - len(kept)
        self.truncated |= len(data) > room
        kept += data[:room]
        return True
