"""The memory of a stream: a few buffers, each of which holds a chunk until everyone who needs it has had it."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

from k2jax.errors import UserError
from k2jax.rl.broadcast.pieces import Coming


class StoppedError(UserError):
    """Nobody wants what comes any more."""

    def __init__(self):
        super().__init__("the weights are not taken to their end, since this process stops")


class BufferedChunk:
    """A chunk in a buffer.

    Attributes:
        place: which one it is.
        data: its bytes.
        record: what stood before it.
    """

    def __init__(self, place: Coming, data: memoryview, record: bytes, users: int):
        self.place, self.data, self.record = place, data, record
        self.users = users


class Buffers:
    """Buffers of one size, made when they are first needed.

    Args:
        count: of buffers at most.
        size: of each [bytes].

    Attributes:
        made: buffers that there are.
    """

    def __init__(self, count: int, size: int):
        self._size, self._count = size, count
        self._free: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self.made = 0

    def take(self) -> memoryview:
        """A free buffer; waits until there is one.

        Raises:
            StoppedError: ``stop`` was called.
        """
        with self._lock:
            is_new = self._free.empty() and self.made < self._count and not self._stopped
            self.made += is_new
        buffer = memoryview(bytearray(self._size)) if is_new else self._free.get()
        if buffer is None or self._stopped:
            self.stop()
            raise StoppedError
        return buffer

    def give(self, chunk: BufferedChunk) -> None:
        """One who needed a chunk has had it."""
        with self._lock:
            chunk.users -= 1
            free = not chunk.users
        if free and not self._stopped:
            self._free.put(memoryview(chunk.data.obj))

    def stop(self) -> None:
        """Ends all waits, now and later, and lets go of what is free."""
        self._stopped = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait()
        self._free.put(None)


class Relay:
    """Chunks on their way to a successor or to the consumer.

    Args:
        buffers: whose the chunks are.
    """

    def __init__(self, buffers: Buffers):
        self._buffers = buffers
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.closed = False

    def put(self, item: Any) -> None:
        """Hands over a chunk, an exception, or None at the end; drops it where the relay is closed."""
        with self._lock:
            if not self.closed:
                self._chunks.put(item)
                return
        if isinstance(item, BufferedChunk):
            self._buffers.give(item)

    def get(self, timeout: float | None = None) -> Any:
        """The next item; raises ``queue.Empty`` where none comes in time."""
        return self._chunks.get(timeout=timeout)

    def close(self) -> None:
        """Gives the buffers of what waits back, and of all that comes."""
        with self._lock:
            self.closed = True
        while True:
            try:
                item = self._chunks.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, BufferedChunk):
                self._buffers.give(item)
        self._chunks.put(StoppedError())  # for who waits
