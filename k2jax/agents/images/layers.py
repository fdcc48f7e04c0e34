"""One layer over the other: tar files, in which an entry may also take away what lower layers have (whiteouts).

See the OCI image specification, "layer". A layer may be hostile: entries that lead out, devices, and more entries or
bytes than an image may have are refused, before anything of them is written.
"""

from __future__ import annotations

import dataclasses
import os
import tarfile
import time
from typing import Any, BinaryIO

from k2jax.agents.images.tree import ImageTree
from k2jax.errors import UserError, abbreviate

_WHITEOUT, _OPAQUE, _META = ".wh.", ".wh..wh..opq", ".wh..wh."
_OWN = {"dev", "proc", "run", "sys"}
"""Folders that a sandbox has itself: what is there is not shown, and devices and pipes are left out."""
_CHUNK = 64 << 10
_LARGEST_HEADER = 64 << 10
"""Bytes that are read at once at most: extended headers of a tar are read into memory as a whole."""
_BLOCK = 512
_HEADERS = 4 * _BLOCK
"""Bytes of a tar for an entry beside its content, in the mean, at most."""

_SECONDS_OF_AN_ENTRY, _SECONDS_OF_A_BYTE = 5e-3, 1e-7
"""Processor time that is granted: some twenty times what usual ones take [s]."""


@dataclasses.dataclass
class ImageBounds:
    """What the layers of one image may have together, and what they have had so far.

    Attributes:
        most_entries: of all layers.
        most_bytes: of all files, holes included.
        seconds: of the processor for the whole image, beside what its entries and bytes are granted [s].
        entries: so far.
        bytes: so far.
    """

    most_entries: int = 2_000_000
    most_bytes: int = 64 << 30
    seconds: float = 60.0
    entries: int = 0
    bytes: int = 0
    _begun: float = dataclasses.field(default_factory=time.process_time)

    def most_tar(self) -> int:
        """Bytes that the tar of the next layer may have: what is left for its files, and for its headers."""
        return self.most_bytes - self.bytes + (self.most_entries - self.entries) * _HEADERS

    def count(self, size: int) -> None:
        """Counts an entry; ValueError where it is one too many."""
        self.entries += 1
        self.bytes += size
        if self.entries > self.most_entries:
            raise ValueError(f"the image has more than {self.most_entries:,} entries")
        if size < 0 or self.bytes > self.most_bytes:
            raise ValueError(f"the files of the image have more than {self.most_bytes:,} bytes")
        granted = self.seconds + self.entries * _SECONDS_OF_AN_ENTRY + self.bytes * _SECONDS_OF_A_BYTE
        if time.process_time() - self._begun > granted:
            raise ValueError("its entries take far longer than those of an image: they are made for that")


def apply_layer(tree: ImageTree, file: BinaryIO, bounds: ImageBounds, name: str) -> None:
    """Puts the entries of a layer over what is there.

    Args:
        tree: of the lower layers.
        file: an uncompressed tar.
        bounds: of the image.
        name: of the layer, for messages.

    Raises:
        UserError: an entry is refused, or the tar is damaged.
    """
    layer, entry = _Layer(tree), ""
    try:
        with tarfile.open(fileobj=_BoundedReads(file), mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # else it keeps all of them
                entry = member.name
                bounds.count(member.size if member.isreg() else 0)
                layer.apply(tar, member)
            end, entry = tar.offset, ""
        file.seek(end)
        if any(file.read(_BLOCK)):  # tarfile takes what is no header for the end
            raise ValueError("it ends in what is no tar")
    except (tarfile.TarError, ValueError, OSError, OverflowError, RecursionError, IndexError, MemoryError) as error:
        at = f", at its entry {abbreviate(entry)}" if entry else ""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error or type(error).__name__
        raise UserError(f"the layer {name} cannot be unpacked{at}: {reason}") from None


class _BoundedReads:
    """A file that refuses to read much at once."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise ValueError(f"a header of more than {_LARGEST_HEADER:,} bytes")
        return self._file.read(size)


class _Layer:
    """One layer, while it is applied."""

    def __init__(self, tree: ImageTree):
        self._tree = tree
        self._own: set[str] = set()  # paths of the host that this layer has made, and the folders above them

    def apply(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Applies an entry; ValueError where it is refused."""
        parts = _parts(member.name)
        if not parts:
            return  # the root
        base = parts[-1]
        if base.startswith(_WHITEOUT):
            self._take_away(parts, base)
            return
        if not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
            if parts[0] in _OWN:
                return
            raise ValueError("a device or a pipe")
        folder = self._tree.parent(parts, make=True)
        assert folder is not None
        path = os.path.join(folder, base)
        self._note(path)
        self._make(tar, member, path)

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        tree = self._tree
        if member.isdir():
            tree.add_folder(path, member.mode, member.mtime)
        elif member.issym():
            tree.add_link(path, member.linkname, member.mtime)
        elif member.islnk():
            source = _parts(member.linkname)
            folder = tree.parent(source, make=False) if source else None
            if folder is None or not os.path.lexists(os.path.join(folder, source[-1])):
                raise ValueError("a hard link to what is not there")
            tree.add_hard_link(path, os.path.join(folder, source[-1]))
        else:
            self._write(tar, member, path)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        content: Any = tar.extractfile(member)
        with open(self._tree.new_file(path), "wb", buffering=0) as file:
            while data := content.read(_CHUNK):
                if any(data):
                    file.write(data)
                else:  # a hole
                    file.seek(len(data), os.SEEK_CUR)
            if file.tell() != member.size:
                raise ValueError("the file is cut off")
            file.truncate()
        self._tree.end_file(path, member.mode, member.mtime)

    def _take_away(self, parts: tuple[str, ...], base: str) -> None:
        """Removes what a whiteout names of the layers below."""
        is_opaque = base == _OPAQUE
        if not is_opaque and base.startswith(_META):
            return  # of an older union file system
        name = base.removeprefix(_WHITEOUT)
        if name in ("", ".", ".."):
            raise ValueError("a whiteout of nothing")
        folder = self._tree.parent(parts, make=False)
        if folder is not None:
            self._clear(folder if is_opaque else os.path.join(folder, name), itself=not is_opaque)

    def _clear(self, path: str, *, itself: bool) -> None:
        """Removes a path, or what is in it, but what this layer has made."""
        if itself and path not in self._own:
            self._tree.remove(path)
        elif os.path.isdir(path) and not os.path.islink(path):
            for name in os.listdir(path):
                self._clear(os.path.join(path, name), itself=True)

    def _note(self, path: str) -> None:
        while path not in self._own and path != self._tree.root:
            self._own.add(path)
            path = os.path.dirname(path)


def _parts(name: str) -> tuple[str, ...]:
    """The components of a path in a tar.

    Raises:
        ValueError: it leads out.
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ValueError("a path that leads upwards")
    return parts
