"""The files of a corpus in a store: their sizes and checksums are those of its manifest, so that nobody is asked."""

from __future__ import annotations

import dataclasses

from k2jax.files.objects.cached_reads import CachedRanges
from k2jax.files.objects.object_path import ObjectPath


class StoredFile:
    """A file of a corpus in a store, read by way of this machine's disk.

    Attributes:
        size: its length [bytes].
    """

    def __init__(self, path: ObjectPath):
        """A file whose size and sha256 are known."""
        self.size = path.size
        self._ranges = CachedRanges(path, pinned=False)

    def read(self, start: int, stop: int) -> bytes:
        """See ``disk_files.OpenedFile``; raises UserError where the store failed for too long."""
        return self._ranges.read(start, stop)

    def forget(self, start: int, stop: int) -> bool:
        """See ``disk_files.OpenedFile``."""
        self._ranges.forget(start, stop)
        return True

    def fill(self, start: int, stop: int) -> int:
        """See ``disk_files.OpenedFile``; raises as ``CachedRanges.fill`` does."""
        return self._ranges.fill(start, stop)


@dataclasses.dataclass(frozen=True)
class StoredFiles:
    """The files of a corpus.

    Attributes:
        folder: in the store.
        entries: ``files`` of its manifest: size and sha256 by the path in the folder.
    """

    folder: ObjectPath
    entries: dict

    def open(self, path: ObjectPath) -> StoredFile:
        """See ``disk_files.Files``."""
        name = path.place[len(self.folder.place) + 1 :]
        if (entry := self.entries.get(name)) is None:
            raise FileNotFoundError(2, "not in the manifest", str(path))
        return StoredFile(path.pinned(entry["bytes"], entry["sha256"]))

    def sizes(self, folder: ObjectPath) -> dict[str, int]:
        """See ``disk_files.Files``."""
        begin = f"{folder.name}/"
        return {name.removeprefix(begin): e["bytes"] for name, e in self.entries.items() if name.startswith(begin)}
