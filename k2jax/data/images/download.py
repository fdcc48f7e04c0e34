"""Downloads of images whose URLs a user allows, within limits of size and time, from addresses of the internet.

A name is resolved once, and what it is resolved to is looked at before the connection is made to just that address:
whoever owns a name that is allowed cannot have this machine's own network asked.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import http.client
import socket
import ssl
import threading
import time
from typing import Any, NamedTuple

from k2jax.client.addresses import is_loopback, is_public
from k2jax.data.images.reading import ImageError, MediaUnavailableError
from k2jax.data.images.urls import URL, address_of, is_allowed, parse_url
from k2jax.errors import abbreviate

_HEADERS = {"User-Agent": "k2jax"}  # some hosts answer nobody without
_AGAIN = (408, 425, 429)  # with all from 500 on: what may be otherwise at another time


class DownloadLimits(NamedTuple):
    """What is downloaded.

    Attributes:
        urls: how the URLs begin that are opened; by default none is.
        megabytes: largest file [10^6 bytes].
        seconds: longest time, from resolving the name to the last byte [s].
    """

    urls: tuple[URL, ...] = ()
    megabytes: float = 20.0
    seconds: float = 10.0


def download(text: str, limits: DownloadLimits, name: str = "image") -> bytes:
    """The content of an http or https URL that is allowed. Redirects are not followed, and no proxy is used.

    Args:
        text: the URL, from a client or from data.
        limits: what is allowed, size and time.
        name: what messages call it.

    Raises:
        ImageError: the URL is not allowed, the host has no public address, it refuses, or the file is too large.
        MediaUnavailableError: the host does not answer, or not in time.
    """
    url = _allowed(text, limits, name)
    said = f"{name} cannot be read from {abbreviate(text)}"
    late = threading.Event()
    most, deadline = int(limits.megabytes * 1e6), time.monotonic() + limits.seconds
    try:
        with _connected(url, said, deadline, late) as connection:
            connection.request("GET", url.target, headers=_HEADERS)
            response = connection.getresponse()
            data = response.read(most + 1) if response.status == http.client.OK else b""
            cut = len(data) <= most and bool(response.length)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not late.is_set() and not isinstance(error, TimeoutError):
            reason = abbreviate(str(error) or type(error).__name__)
            raise MediaUnavailableError(f"{said}: {reason}") from None
        late.set()
    if late.is_set():
        raise MediaUnavailableError(f"{said}: it takes over {limits.seconds:g} seconds")
    _check_answer(response.status, cut, said)
    if len(data) > most:
        raise ImageError(f"{name} at {abbreviate(text)} has more than {limits.megabytes:g} MB")
    return data


def _allowed(text: str, limits: DownloadLimits, name: str) -> URL:
    why = ""
    try:
        url = parse_url(text)
        if url.is_web and is_allowed(url, limits.urls):
            return url
    except ValueError as error:
        why = f": {error}"
    raise ImageError(f"{name} must come in a data URL; {abbreviate(text)} is not opened here{why}")


def _check_answer(status: int, cut: bool, said: str) -> None:
    """Raises where an answer holds no whole file."""
    if status >= 500 or status in _AGAIN:
        raise MediaUnavailableError(f"{said}: the host answers {status}")
    if status != http.client.OK:
        moved = ", and redirects are not followed" if 300 <= status < 400 else ""
        raise ImageError(f"{said}: the host answers {status}{moved}")
    if cut:
        raise MediaUnavailableError(f"{said}: the answer is cut off")


@contextlib.contextmanager
def _connected(url: URL, said: str, deadline: float, late: threading.Event) -> Iterator[http.client.HTTPConnection]:
    """A connection to one of the addresses of a URL's host, which ends when the time is over."""
    addresses = _public(url, said)
    sock = _reached(addresses, deadline)
    secure = ssl.create_default_context() if url.scheme == "https" else None
    kinds = {"context": secure} if secure else {}
    connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(url.host, url.port, **kinds)
    try:
        if secure:
            sock = secure.wrap_socket(sock, server_hostname=url.host, do_handshake_on_connect=False)
        connection.sock = sock
        with _interrupted(sock, deadline, late):
            if secure:
                sock.do_handshake()
            yield connection
    finally:
        connection.close()
        sock.close()


def _public(url: URL, said: str) -> list[Any]:
    """What the host is resolved to, as of ``getaddrinfo``: public addresses alone, unless it is an address itself.

    Raises:
        ImageError: it has none.
    """
    found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    if address_of(url.host):
        return found
    local = url.host == "localhost"
    chosen = [each for each in found if (is_loopback if local else is_public)(each[4][0])]
    if not chosen:
        raise ImageError(
            f"{said}: {url.host} has no public address; where a machine of your own network is meant, allow the URL "
            "with the machine's address in place of its name"
        )
    return chosen


def _reached(addresses: list[Any], deadline: float) -> socket.socket:
    """A socket that is connected to the first address that answers."""
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(1e-3, deadline - time.monotonic()))
            sock.connect(address)
            return sock
        except OSError as error:
            failure = error
            sock.close()
    raise failure


@contextlib.contextmanager
def _interrupted(sock: socket.socket, deadline: float, late: threading.Event) -> Iterator[None]:
    """Ends what reads from a socket when the time is over, also where bytes keep coming one by one."""

    def interrupt() -> None:
        late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the reader notices; TLS has nothing to say any more

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
