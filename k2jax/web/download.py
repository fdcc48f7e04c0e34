"""Downloads of images from hosts that the server's operator names, within limits of size and time."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import http.client
import socket
import threading
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from k2jax.data.images.reading import ImageError
from k2jax.errors import abbreviate

_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class DownloadLimits(NamedTuple):
    """What is downloaded.

    Attributes:
        hosts: whose URLs are opened: ``example.com`` at the usual ports, ``example.com:8080`` at that one.
        megabytes: largest file [10^6 bytes].
        seconds: longest time, from the request to the last byte [s].
    """

    hosts: frozenset[str] = frozenset()
    megabytes: float = 20.0
    seconds: float = 10.0


def download(url: str, limits: DownloadLimits, name: str = "image") -> bytes:
    """The content of an http or https URL of an allowed host. Redirects are not followed, and no proxy is used.

    Args:
        url: from a client.
        limits: hosts, size and time.
        name: what messages call it.

    Raises:
        ImageError: the host is not allowed, it answers anything but 200, or the limits are exceeded.
    """
    parts = _check(url, limits, name)
    connection = _CONNECTIONS[parts.scheme](parts.hostname, parts.port, timeout=limits.seconds)
    late = threading.Event()
    most = int(limits.megabytes * 1e6)
    try:
        connection.connect()
        with _interrupted(connection.sock, limits.seconds, late):
            connection.request("GET", parts._replace(scheme="", netloc="", fragment="").geturl() or "/")
            response = connection.getresponse()
            data = response.read(most + 1) if response.status == http.client.OK else b""
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not late.is_set() and not isinstance(error, TimeoutError):
            reason = abbreviate(str(error) or type(error).__name__)
            raise ImageError(f"{name} cannot be read from {abbreviate(url)}: {reason}") from None
        late.set()
    finally:
        connection.close()
    if late.is_set():
        raise ImageError(f"{name} cannot be read from {abbreviate(url)}: it takes over {limits.seconds:g} seconds")
    if response.status != http.client.OK:
        raise ImageError(f"{name} cannot be read from {abbreviate(url)}: the host answers {response.status}")
    if len(data) > most:
        raise ImageError(f"{name} at {abbreviate(url)} has more than {limits.megabytes:g} MB")
    return data


@contextlib.contextmanager
def _interrupted(sock: socket.socket, seconds: float, late: threading.Event) -> Iterator[None]:
    """Ends what reads from a socket when the time is over, also where bytes keep coming one by one."""

    def interrupt() -> None:
        late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the reader notices; TLS has nothing to say any more

    timer = threading.Timer(seconds, interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check(url: str, limits: DownloadLimits, name: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise ImageError(f"{name} has no valid URL: {abbreviate(url)}") from None
    if parts.scheme not in _CONNECTIONS or f"{parts.hostname}{port}" not in limits.hosts or "@" in parts.netloc:
        raise ImageError(f"{name} must come in a data URL; this server does not open {abbreviate(url)}")
    return parts
