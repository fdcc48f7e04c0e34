"""A place in an object store, with those methods of a path that its readers use."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from pathlib import Path
from typing import BinaryIO, NamedTuple

from k2jax.errors import UserError, abbreviate
from k2jax.files.objects.object_address import EXTRAS, ObjectAddress, parts_of_url
from k2jax.files.objects.object_reader import open_object
from k2jax.files.objects.store_client import store_client


class ObjectStatus(NamedTuple):
    """What readers of files ask of a path, of an object.

    Attributes:
        st_size: of its content [bytes].
        st_mtime_ns: its version, which changes when it is written as the time of a file does.
    """

    st_size: int
    st_mtime_ns: str


@dataclasses.dataclass(frozen=True)
class ObjectPath(ObjectAddress):
    """A place in a store. A path of a listing knows its object's size and version."""

    @classmethod
    def parse(cls, url: str) -> ObjectPath:
        """The place that a URL names.

        Raises:
            UserError: it names no bucket, or a key that clients read in several ways.
        """
        scheme, place = parts_of_url(url)
        parts = place.split("/")
        if scheme not in EXTRAS or not parts[0]:
            raise UserError(f"{abbreviate(url, 300)} names no bucket; write s3://BUCKET/KEY or gs://BUCKET/KEY")
        if not place.isprintable() or "::" in place or any(part in ("", ".", "..") for part in parts):
            raise UserError(f"{abbreviate(url, 300)} has an empty segment, . or .., :: or a control character")
        return cls(scheme, place)

    def __truediv__(self, name: str) -> ObjectPath:
        """A place below this one."""
        return ObjectPath(self.scheme, f"{self.place}/{name}")

    @property
    def name(self) -> str:
        """The last segment."""
        return self.place.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last point."""
        return Path(self.name).suffix

    @property
    def parent(self) -> ObjectPath:
        """What this is below of."""
        return ObjectPath(self.scheme, self.place.rpartition("/")[0])

    def as_posix(self) -> str:
        """The URL, by which files are sorted."""
        return str(self)

    def pinned(self, size: int, version: str) -> ObjectPath:
        """This object with what is known of it."""
        return dataclasses.replace(self, size=size, version=version)

    def known(self) -> ObjectPath:
        """This object with its size and version, for which the store is asked where they are not known.

        Raises:
            FileNotFoundError: there is none.
            UserError: the store failed for too long.
        """
        return self if self.size is not None else self.pinned(*store_client(self.scheme).info(self.place))

    def stat(self) -> ObjectStatus:
        """Size and version; errors as of ``known``."""
        known = self.known()
        return ObjectStatus(known.size, known.version)

    def exists(self) -> bool:
        """Whether there is an object; raises UserError as ``known`` does."""
        try:
            self.known()
        except FileNotFoundError:
            return False
        return True

    def below(self) -> Iterator[ObjectPath]:
        """All objects below this folder, by name, with their sizes and versions; raises UserError as ``known`` does."""
        for place, info in store_client(self.scheme).listing(self.place).items():
            if place != self.place and not place.endswith("/"):
                yield ObjectPath(self.scheme, place, *info)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Opens the object for reading, by way of the disk tier; errors as of ``known``."""
        if mode != "rb":
            raise ValueError(f"an object is opened to be read as bytes, not in mode {mode!r}")
        return open_object(self.known())

    def read_bytes(self) -> bytes:
        """The whole object; errors as of ``known``."""
        with self.open() as file:
            return file.read()


def parse_place(text: str) -> Path | ObjectPath:
    """The place that a path or a URL names; ``file://`` is a path. Errors as of ``ObjectPath.parse``."""
    if text.lower().startswith("file://"):
        return Path(text[len("file://") :]).expanduser()
    return ObjectPath.parse(text) if "://" in text else Path(text).expanduser()
