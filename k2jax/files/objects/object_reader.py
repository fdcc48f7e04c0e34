"""An object as a file that is read: for the readers of formats, which seek."""

from __future__ import annotations

import io

from k2jax.files.objects.cached_reads import CachedRanges
from k2jax.files.objects.object_address import ObjectAddress

_BUFFER = 2**20
_WINDOW = 2**16


class _RawObject(io.RawIOBase):
    """The bytes of an object, and a place in them."""

    def __init__(self, path: ObjectAddress):
        self._ranges, self._place, self.name = CachedRanges(path), 0, str(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._ranges.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a place before the beginning: {base + offset}")
        self._place = base + offset
        return self._place

    def readinto(self, buffer: bytearray) -> int:
        stop = min(self._place + len(buffer), self._ranges.size)
        if stop <= self._place:
            return 0
        data = self._ranges.read(self._place, stop)
        buffer[: len(data)] = data
        self._place = stop
        return len(data)


def open_object(path: ObjectAddress) -> io.BufferedReader:
    """Opens an object whose size and version are known; reading raises as ``CachedRanges.read`` does."""
    return io.BufferedReader(_RawObject(path), _BUFFER)


class ObjectBytes:
    """An object as a sequence of bytes, of which a window is in memory."""

    def __init__(self, path: ObjectAddress):
        """An object whose size and version are known."""
        self._ranges, self._start, self._window = CachedRanges(path), 0, b""

    def __len__(self) -> int:
        """Bytes of the object."""
        return self._ranges.size

    def __getitem__(self, place: int) -> int:
        """One byte; errors as of ``CachedRanges.read``."""
        if not self._start <= place < self._start + len(self._window):
            self._start = place
            self._window = self._ranges.read(place, min(place + _WINDOW, self._ranges.size))
        return self._window[place - self._start]
