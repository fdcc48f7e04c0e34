"""Where the files of images and videos lie that records name: below one folder, and at URLs that the user allows.

A record may come from anywhere, so that what it names is never opened as it stands: a path must lead to a regular file
below the folder, links followed, and a URL must begin as one that the source lists.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

from k2jax.config.schema import SourceConfig
from k2jax.data.images.download import DownloadLimits, download
from k2jax.data.images.reading import (
    ImageError,
    MediaUnavailableError,
    ReadLimits,
    decode_data_url,
    is_data_url,
    read_regular_file,
)
from k2jax.data.images.urls import URL, allowed_beginning, is_allowed, parse_url
from k2jax.errors import UserError, abbreviate
from k2jax.files.confined import confined
from k2jax.files.objects.cached_reads import forget_kept, read_kept
from k2jax.files.objects.object_address import ObjectAddress, is_object_url
from k2jax.files.objects.store_client import store_client

SECONDS = 60.0
"""Longest download of a file that a record names [s]."""


@dataclasses.dataclass(frozen=True)
class MediaPlaces:
    """What may be opened; by default nothing is.

    Attributes:
        folder: files are below it, and relative paths begin there; it may be a URL of a store. Empty where no files are
            opened.
        urls: how URLs begin that are opened.
        key: what messages tell the user to change.
        tier: whether the disk tier keeps objects of stores: not at all; each as it was last asked for; or as it is
            there, without a request, for who compares checksums.
    """

    folder: str = ""
    urls: tuple[URL, ...] = ()
    key: str = "MediaPlaces"
    tier: Literal["none", "renewed", "kept"] = "none"

    def beside(self, folder: str) -> MediaPlaces:
        """These places, with a folder where they have none."""
        return self if self.folder else dataclasses.replace(self, folder=folder)


NOWHERE = MediaPlaces()


def places_of_source(name: str, source: SourceConfig) -> MediaPlaces:
    """The places of a source; those without a folder are completed by that of each of its files.

    Raises:
        UserError: ``media_from`` names several folders, one that does not exist, or what no URL begins with.
    """
    key = f"data.sources.{name}.media_from"
    folders = [place for place in source.media_from if "://" not in place]
    if len(folders) > 1:
        raise UserError(f"{key} names {len(folders)} folders; files of a source are below one")
    for folder in folders:
        if not os.path.isdir(os.path.expanduser(folder)):
            raise UserError(f"{key} is {abbreviate(folder, 300)}, which is no folder; URLs have :// in them")
    urls = []
    for place in source.media_from:
        try:
            urls += [allowed_beginning(place)] if "://" in place else []
        except ValueError as error:
            raise UserError(
                f"{key} has {abbreviate(place, 300)}: {error}; write https://example.com/pictures or s3://bucket"
            ) from None
    return MediaPlaces("".join(folders), tuple(urls), key, "renewed")


def read_media(value: Any, places: MediaPlaces, limits: ReadLimits, name: str) -> bytes:
    """The bytes of an image or a video that a record names, at most one more than the limit.

    Args:
        value: a data URL, a path, or a URL; from a record, so it may be anything.
        places: what may be opened.
        limits: largest file.
        name: what messages call it.

    Raises:
        ImageError: it may not be opened, there is none, it is no regular file or too large.
        MediaUnavailableError: a host or a store refuses or does not answer, or its client is not installed.
        UserError: the value is no text.
    """
    if not isinstance(value, str) or not value:
        raise UserError(f"{name} must be a path or a URL, not {abbreviate(value)}")
    if is_data_url(value):
        return decode_data_url(value)
    if not (places.folder or places.urls):
        raise ImageError(f"{name} must come in a data URL; paths and other URLs are not opened here")
    if is_object_url(places.folder):
        own = allowed_beginning(places.folder)
        places = dataclasses.replace(places, urls=(*places.urls, own))
        value = value if "://" in value else f"{places.folder}/{value}"
    if "://" in value:
        return _read_url(value, places, limits, name)
    if not places.folder:
        raise ImageError(f"{name} is {abbreviate(value, 300)}, and files are not opened here")
    try:
        path = confined(value, places.folder, name)
    except UserError as error:
        raise ImageError(f"{error} ({places.key})") from None
    return read_regular_file(path, limits, name)


def read_named(place: str, limits: ReadLimits, name: str) -> bytes:
    """The bytes of a file at a path or a URL that the user has named, wherever it is.

    Raises:
        ImageError: there is none, it is no regular file or too large, or there is no such URL.
        MediaUnavailableError: as of ``read_media``.
    """
    try:
        if "://" not in place:
            return read_regular_file(os.path.realpath(os.path.expanduser(place)), limits, name)
        return _read_url(place, MediaPlaces(urls=(parse_url(place),)), limits, name)
    except ValueError as error:
        raise ImageError(f"{name} cannot be read from {abbreviate(place, 300)}: {error}") from None


def _read_url(text: str, places: MediaPlaces, limits: ReadLimits, name: str) -> bytes:
    try:
        url = parse_url(text)
    except ValueError as error:
        raise ImageError(f"{name} is {abbreviate(text, 300)}, which is not opened: {error}") from None
    if not is_allowed(url, places.urls):
        raise ImageError(
            f"{name} is {abbreviate(text, 300)}, which {places.key} does not allow; to have such files opened, add "
            f"'{url.origin}' to it"
        )
    if url.is_web:
        return download(text, DownloadLimits(places.urls, limits.megabytes, SECONDS), name)
    return _read_object(url, limits, places.tier, f"{name} cannot be read from {abbreviate(text, 300)}")


def _read_object(url: URL, limits: ReadLimits, tier: str, said: str) -> bytes:
    """The bytes of an object of a store; its client is asked by bucket and key, which it does not take for a chain."""
    address, most = ObjectAddress(url.scheme, f"{url.host}/{url.target}"), int(limits.megabytes * 1e6) + 1
    try:
        if tier == "none":
            return store_client(url.scheme).read_all(address.place, most)
        if tier == "renewed":
            forget_kept(address)
        data = read_kept(address, most)
        if len(data) == most:  # not whole: another limit would not be content with it
            forget_kept(address)
        return data
    except FileNotFoundError:
        raise ImageError(f"{said}: there is no such object") from None
    except UserError as error:
        raise MediaUnavailableError(f"{said}: {abbreviate(str(error), 300)}") from error
