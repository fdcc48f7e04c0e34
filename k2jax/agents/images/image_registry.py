"""A registry of images on this machine's loopback (the OCI distribution specification), read without encryption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import http.client
import ipaddress
import re
import socket
import time
from typing import Any, BinaryIO
import urllib.error
import urllib.parse
import urllib.request

from k2jax.agents.images.layout import digest_of
from k2jax.agents.images.manifest import MOST_MANIFEST, Descriptor
from k2jax.errors import UserError, abbreviate

SECONDS = 60.0
"""Time in which the registry must send something [s]."""
_SECONDS_OF_A_BLOB = 6 * 3600.0
_ACCEPTED = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_NAME = re.compile(r"([a-z0-9][a-z0-9._/-]{0,254})(?:@(sha256:[0-9a-f]{64})|:([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))")


class RegistrySource:
    """One image of a registry.

    Args:
        url: ``http://127.0.0.1:PORT/NAME:TAG``, or with ``@sha256:...`` in the place of the tag.

    Raises:
        UserError: it is no such URL, or of another machine.
    """

    def __init__(self, url: str):
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:
            raise UserError(f"{abbreviate(url)} is no URL; write http://127.0.0.1:PORT/NAME:TAG") from None
        name = _NAME.fullmatch(parts.path.removeprefix("/"))
        if parts.scheme != "http" or not parts.hostname or name is None or parts.query or parts.fragment:
            raise UserError(f"{abbreviate(url)} names no image of a registry; write http://127.0.0.1:PORT/NAME:TAG")
        if not _is_loopback(parts.hostname):
            raise UserError(
                f"{parts.hostname} is another machine, and registries are read on 127.0.0.1 alone: copy the image with "
                "skopeo copy docker://... oci:FOLDER:TAG"
            )
        self._base = f"http://{parts.netloc}/v2/{name[1]}"
        self._reference = name[2] or name[3]
        # No proxy, and no redirection to another machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def root(self) -> tuple[bytes, str]:
        """See ``BlobSource``."""
        with self._get(f"manifests/{self._reference}") as response:
            data = response.read(MOST_MANIFEST + 1)
        digest = digest_of(data)
        if self._reference.startswith("sha256:") and digest != self._reference:
            raise UserError(f"the registry gave another manifest than {self._reference}")
        return data, digest

    def blob(self, descriptor: Descriptor) -> contextlib.AbstractContextManager[BinaryIO]:
        """See ``BlobSource``; manifests are blobs here too."""
        folder = "manifests" if "manifest" in descriptor.media_type or "index" in descriptor.media_type else "blobs"
        return self._get(f"{folder}/{descriptor.digest}")

    @contextlib.contextmanager
    def _get(self, path: str) -> Iterator[Any]:
        request = urllib.request.Request(f"{self._base}/{path}", headers={"Accept": _ACCEPTED})
        try:
            response = self._opener.open(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            raise UserError(f"the registry answers {error.code} to {self._base}/{path}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreadable(error) from None
        with response:
            yield _Answer(response, self._unreadable)

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f"the registry cannot be read at {self._base}: {abbreviate(str(error))}")


class _Answer:
    """The body of an answer; errors of reading it are the registry's."""

    def __init__(self, response: Any, unreadable: Callable[[Exception], UserError]):
        self._response, self._unreadable = response, unreadable
        self._end = time.monotonic() + _SECONDS_OF_A_BLOB

    def read(self, size: int = -1) -> bytes:
        """See ``BinaryIO``."""
        try:
            if time.monotonic() > self._end:
                raise TimeoutError(f"a blob takes more than {_SECONDS_OF_A_BLOB:,.0f} s")
            return self._response.read(size)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreadable(error) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirection the error that it stands for."""

    def http_error_302(self, *arguments: Any) -> None:
        """Follows nothing."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _is_loopback(host: str) -> bool:
    """Whether all addresses of a name are of this machine."""
    try:
        addresses = {address[4][0] for address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
