"""URLs from data or from a client, and the beginnings of those that a user allows: compared by parts, never as text.

A beginning is a scheme, a host with its port or a bucket, and whole segments of a path. What a server or a client of a
store could read in two ways, such as a segment ``..`` in whatever spelling, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from k2jax.errors import UserError, abbreviate

PORTS = {"http": 80, "https": 443}
"""What is downloaded, with the usual ports."""
STORES = ("az", "gs", "s3")
"""Schemes of object stores, whose buckets fsspec reads by the packages adlfs, gcsfs and s3fs."""
SCHEMES = (*PORTS, *STORES)
LONGEST_URL = 8192
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_DECODINGS = 8


class URL(NamedTuple):
    """A URL in parts, or the beginning of URLs.

    Attributes:
        scheme: of ``SCHEMES``.
        host: in lower case, an address in its shortest form; for a store the bucket.
        port: 0 for a store.
        target: path and query as a server takes them, or what follows the bucket and its slash.
        segments: of the path, without percent-encoding, which stores do not know.
    """

    scheme: str
    host: str
    port: int
    target: str
    segments: tuple[str, ...]

    @property
    def is_web(self) -> bool:
        """Whether it is downloaded from a host, rather than read from a store."""
        return self.scheme in PORTS

    @property
    def origin(self) -> str:
        """Scheme, host and port, or the bucket, as a user writes them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port != PORTS.get(self.scheme, 0) else "")

    def begins(self, other: URL) -> bool:
        """Whether another URL has its scheme, host, port and segments; it may have further segments and a query."""
        return self[:3] == other[:3] and other.segments[: len(self.segments)] == self.segments


def parse_url(text: str) -> URL:
    """The parts of a URL.

    Raises:
        ValueError: it is none, or none of those that can be opened; the message says why.
    """
    if len(text) > LONGEST_URL:
        raise ValueError(f"it has more than {LONGEST_URL:,} characters")
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise ValueError(f"it is no URL of {', '.join(SCHEMES)}")
    url = _web(scheme, rest) if scheme in PORTS else _store(scheme, rest)
    if _climbs(url.target.partition("?")[0] if url.is_web else url.target):
        raise ValueError("it has a segment . or .. in its path")
    return url


def allowed_beginning(text: str) -> URL:
    """The beginning of the URLs that a user allows, such as ``https://example.com/pictures`` or ``s3://bucket``.

    Raises:
        ValueError: it is none; the message says why.
    """
    url = parse_url(text)
    if "?" in text or "#" in text:
        raise ValueError("what URLs begin with has no ? and no #")
    segments = url.segments
    while segments and not segments[-1]:
        segments = segments[:-1]
    return url._replace(segments=segments)


def urls_of_hosts(hosts: Iterable[str]) -> tuple[URL, ...]:
    """The beginnings of all http and https URLs of some hosts, ``HOST`` at the usual ports or ``HOST:PORT``.

    Raises:
        UserError: one is no host.
    """
    urls = []
    for host in hosts:
        try:
            urls += [allowed_beginning(f"{scheme}://{host}") for scheme in PORTS]
        except ValueError as error:
            raise UserError(f"{abbreviate(host)} is no host of images: {error}; write HOST or HOST:PORT") from None
        if urls[-1].segments:
            raise UserError(f"{abbreviate(host)} is no host of images: it has a path; write HOST or HOST:PORT")
    return tuple(urls)


def is_allowed(url: URL, beginnings: Iterable[URL]) -> bool:
    """Whether a URL begins as one of those that are allowed."""
    return any(beginning.begins(url) for beginning in beginnings)


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _web(scheme: str, rest: str) -> URL:
    if not re.fullmatch(r"[!-\[\]-~]*", rest):  # urlsplit removes line feeds; a backslash is a slash for some
        raise ValueError("spaces, backslashes and characters beyond ASCII must be percent-encoded")
    parts = urlsplit(f"{scheme}://{rest}")
    host, port = parts.hostname or "", parts.port
    if "@" in parts.netloc:
        raise ValueError("a user's name or password is not sent")
    address = address_of(host)
    if not (address or _HOST.fullmatch(host)) or "%" in host or parts.netloc.endswith(":") or port == 0:
        raise ValueError(f"{abbreviate(parts.netloc, 60)} is no host")
    path = parts.path.removeprefix("/")
    segments = tuple(unquote(part, errors="surrogateescape") for part in path.split("/")) if path else ()
    target = f"/{path}?{parts.query}" if parts.query else f"/{path}"
    return URL(scheme, str(address or host), port or PORTS[scheme], target, segments)


def _store(scheme: str, rest: str) -> URL:
    if not rest.isprintable() or "::" in rest or "\\" in rest:
        raise ValueError("the name of an object has no ::, no backslash and no control characters")
    bucket, _, key = rest.partition("/")
    if not _HOST.fullmatch(bucket):
        raise ValueError(f"{abbreviate(bucket, 60)} is no bucket")
    return URL(scheme, bucket, 0, key, tuple(key.split("/")) if key else ())


def _climbs(path: str) -> bool:
    """Whether a path has a segment ``.`` or ``..`` for whoever decodes it, however often, or drops its parameters."""
    for _ in range(_DECODINGS):
        decoded = unquote(path, errors="surrogateescape")
        if decoded == path:
            break
        path = decoded
    else:
        return True
    return any(part.partition(";")[0] in (".", "..") for part in re.split(r"[/\\]", path))
