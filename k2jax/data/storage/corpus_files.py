"""The files of a finished corpus in a folder or a store: read in order without a cache, hashed, written whole."""

from __future__ import annotations

from collections.abc import Iterator
import hashlib
from pathlib import Path

from k2jax.errors import UserError
from k2jax.files.atomic import naming, replacing
from k2jax.files.objects.host_settings import host_settings
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.store_client import store_client

PIECE = 8 * 2**20
"""Bytes that are read at a time."""
Place = Path | ObjectPath


def size_of(path: Place) -> int | None:
    """Bytes of a file; None where there is none.

    Raises:
        UserError: the store failed for too long.
    """
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def pieces_of(path: Place, size: int) -> Iterator[bytes]:
    """The bytes of a file in order, from the store itself where it lies in one.

    Raises:
        UserError: it is gone, shorter, cannot be read, or the store failed for too long.
    """
    try:
        if isinstance(path, Path):
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    yield piece
            return
        for start in range(0, size, PIECE):
            yield store_client(path.scheme).read(path.place, start, min(start + PIECE, size))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def sha256_of(path: Place, size: int) -> str:
    """The sha256 of a file; errors as of ``pieces_of``."""
    digest = hashlib.sha256()
    for piece in pieces_of(path, size):
        digest.update(piece)
    return digest.hexdigest()


def copy_file(source: Place, destination: Place, size: int, sha256: str) -> None:
    """Copies a file, which appears whole and with the right content or not at all.

    Args:
        source: the file.
        destination: where it is to be.
        size: of the file [bytes].
        sha256: of the file.

    Raises:
        UserError: the source, or what the store gives back of the copy, has another hash; or as of ``pieces_of``.
        OSError: the disk cannot be written.
    """
    if isinstance(destination, Path):
        _write(source, destination, size, sha256)
        return
    client = store_client(destination.scheme)
    if isinstance(source, Path):
        _compare(source, sha256_of(source, size), sha256)
        client.write(destination.place, source)
    else:
        between = host_settings().folder / "copying" / sha256
        _write(source, between, size, sha256)
        client.write(destination.place, between)
        between.unlink()
    _compare(destination, sha256_of(destination, size), sha256)


def _write(source: Place, destination: Path, size: int, sha256: str) -> None:
    digest = hashlib.sha256()
    destination.parent.mkdir(parents=True, exist_ok=True)
    with replacing(destination) as file:
        for piece in pieces_of(source, size):
            digest.update(piece)
            with naming(destination):
                file.write(piece)
        _compare(source, digest.hexdigest(), sha256)


def _compare(path: Place, found: str, expected: str) -> None:
    if found != expected:
        raise UserError(
            f"{path} has the sha256 {found[:16]}..., and {expected[:16]}... is its manifest's: it is damaged"
        )
