"""Samples of a WebDataset: consecutive members of a tar file whose names have one key, which ends at a full stop.

A file may be broken or hostile: what is read of it is bounded, and an end that is none is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import itertools
from pathlib import Path
import tarfile
from types import MappingProxyType
from typing import NamedTuple

from k2jax.data.images.reading import ReadLimits
from k2jax.errors import UserError, abbreviate
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.readers import first_line

_RECORD, _CAPTION = "json", "txt"
_IMAGES = ("png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "mp4", "mov", "webm", "mkv", "avi")
_SEVERAL = 8  # of the largest image that fit a sample
_BLOCK, _AT_ONCE = 512, 1 << 20  # of a tar, and of its end that is read at a time [bytes]


class TarSample(NamedTuple):
    """The members of one key.

    Attributes:
        where: its place, in words.
        key: their common name.
        json: of the member ``KEY.json``; empty if there is none.
        caption: of the member ``KEY.txt``.
        images: contents of images and videos, by what follows the key and its full stop, in order.
        why: why nothing was read; empty otherwise.
    """

    where: str
    key: str
    json: bytes = b""
    caption: bytes | None = None
    images: Mapping[str, bytes] = MappingProxyType({})
    why: str = ""


class _UnusableError(Exception):
    """A sample cannot be used; the message says why."""


def tar_samples(path: Path | ObjectPath, limits: ReadLimits) -> Iterator[TarSample]:
    """The samples of a file that is not compressed; other members than JSON, texts, images and videos are left out.

    Args:
        path: the file.
        limits: largest member.

    Raises:
        UserError: the file lies in a store, which failed for too long.
    """
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for key, members in itertools.groupby(_members(archive), lambda member: _split(member.name)[0]):
                where = f"{path}, sample {abbreviate(key, 100)}"
                try:
                    yield _sample(archive, where, key, list(members), limits)
                except _UnusableError as error:
                    yield TarSample(where, key, why=str(error))
            _check_end(archive)
    except UserError:  # a store that fails, which is nothing that the file is to blame for
        raise
    except Exception as error:  # tarfile raises a dozen types on damaged headers
        yield TarSample(str(path), "", why=f"not readable as a tar that is not compressed: {first_line(error)}")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The regular files of an archive.

    Raises:
        ReadError: a header leads backwards, which would never end.
    """
    before = -1
    while (member := archive.next()) is not None:
        if member.size < 0 or archive.offset <= before:
            raise tarfile.ReadError(f"the header of {abbreviate(member.name, 100)} leads backwards")
        before = archive.offset
        if member.isreg() and not member.issparse():
            yield member
        archive.members.clear()  # of millions


def _check_end(archive: tarfile.TarFile) -> None:
    """Raises ReadError where an archive does not end in zeros: ``tarfile`` takes a damaged header for its end."""
    archive.fileobj.seek(archive.offset)
    mark = archive.fileobj.read(_BLOCK)
    if len(mark) < _BLOCK or any(mark):
        raise tarfile.ReadError(f"it is damaged or cut off at byte {archive.offset}; what follows was not read")
    while rest := archive.fileobj.read(_AT_ONCE):
        if rest.strip(b"\0"):
            raise tarfile.ReadError(f"a header is empty at byte {archive.offset}; what follows was not read")


def _split(name: str) -> tuple[str, str]:
    """A member's key and what follows: the first full stop of the last part of its path is between them."""
    folder, slash, file = name.rpartition("/")
    stem, _, rest = file.partition(".")
    return folder + slash + stem, rest


def _sample(
    archive: tarfile.TarFile, where: str, key: str, members: list[tarfile.TarInfo], limits: ReadLimits
) -> TarSample:
    named = [(_split(member.name)[1], member) for member in members]
    kept = [(name, member) for name, member in named if name in (_RECORD, _CAPTION) or _is_image(name)]
    most = limits.megabytes * 1e6
    for name, member in kept:
        if member.size > most:
            raise _UnusableError(f".{name} has {member.size / 1e6:,.1f} MB; at most {limits.megabytes:g} are read")
    if sum(member.size for _, member in kept) > _SEVERAL * most:
        raise _UnusableError(f"its members have more than {_SEVERAL * limits.megabytes:g} MB together")
    contents = {name: archive.extractfile(member).read() for name, member in kept}
    if len(contents) < len(kept):
        raise _UnusableError("two of its members have one name")
    images = {name: data for name, data in contents.items() if _is_image(name)}
    return TarSample(where, key, contents.get(_RECORD, b""), contents.get(_CAPTION), images)


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _IMAGES
