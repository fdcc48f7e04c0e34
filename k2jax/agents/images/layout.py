"""An OCI image layout: a folder with an index and blobs, as ``skopeo copy ... oci:FOLDER`` and buildah write it."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import errno
import hashlib
import os
from pathlib import Path
import stat
from typing import BinaryIO

from k2jax.agents.images.manifest import MOST_MANIFEST, Descriptor, read_small
from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json

_TAG = "org.opencontainers.image.ref.name"


class LayoutSource:
    """One image of a layout.

    Args:
        folder: of the layout.
        tag: of the image; empty where the layout has one alone.
    """

    def __init__(self, folder: str, tag: str = ""):
        self._folder, self._tag = Path(folder), tag

    def root(self) -> tuple[bytes, str]:
        """See ``BlobSource``."""
        path = self._folder / "index.json"
        try:
            with _opened(path) as file:
                index = parse_bounded_json(file.read(MOST_MANIFEST))
        except OSError as error:
            raise UserError(f"{self._folder} is no OCI image layout: {path}: {error.strerror}") from None
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        manifests = index.get("manifests") if isinstance(index, Mapping) else None
        entries = [entry for entry in manifests if isinstance(entry, Mapping)] if isinstance(manifests, list) else []
        notes = [entry.get("annotations") for entry in entries]
        tags = [str(each.get(_TAG, "")) if isinstance(each, Mapping) else "" for each in notes]
        chosen = [entry for entry, tag in zip(entries, tags, strict=True) if self._tag in ("", tag)]
        if len(chosen) != 1:
            known = ", ".join(filter(None, tags)) or "none has a tag"
            raise UserError(
                f"{self._folder} has {len(chosen)} images of the tag {abbreviate(self._tag)}: write oci:FOLDER:TAG; "
                f"tags: {abbreviate(known)}"
            )
        descriptor = Descriptor.read(chosen[0])
        return read_small(self, descriptor), descriptor.digest

    def blob(self, descriptor: Descriptor) -> contextlib.AbstractContextManager[BinaryIO]:
        """See ``BlobSource``."""
        path = self._folder / "blobs" / "sha256" / descriptor.digest.partition(":")[2]
        try:
            return _opened(path)
        except OSError as error:
            raise UserError(f"the blob {descriptor.digest} is not in {self._folder}: {error.strerror}") from None


def _opened(path: Path) -> BinaryIO:
    """Opens a regular file; a pipe would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return open(descriptor, "rb")


def digest_of(data: bytes) -> str:
    """The digest of a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
