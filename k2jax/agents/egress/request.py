"""What a client asks a proxy, read strictly: whatever two readers could take for two things is refused.

h11 reads the request; before it, lines are looked at that it joins or takes though they are not as the standard has
them, and behind it the target, which h11 leaves to others. A connection carries one request without a body, and another
connection carries it on: nothing that follows a request can be taken for a second one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import h11

from k2jax.agents.egress.allow_list import Destination, parse_place
from k2jax.errors import UserError

METHODS = ("GET", "HEAD")
"""That pass in the clear."""
_WRONG_LINES = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]|\0")
"""Ends of lines that are no CRLF, and lines that go on in the next one."""
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|host)[ \t]*:([^\r]*)", re.IGNORECASE)
_TARGET = re.compile(r"http://([^/?#@\\]*)((?:/[^#\\]*)?)")
_HIDDEN_LINES = re.compile(r"%0[0ad]", re.IGNORECASE)
_OF_CONNECTION = (
    b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"proxy-authenticate",
    b"proxy-authorization", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
)  # fmt: skip
"""Headers that are of one connection alone."""
MOST_LINES = 128
"""Of the head of a message."""

Headers = list[tuple[bytes, bytes]]


class RefusedError(Exception):
    """A request that is not carried out.

    Attributes:
        status: of the answer.
        reason: in words.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class ProxyRequest(NamedTuple):
    """A request that may be carried out where its destination is allowed.

    Attributes:
        method: ``GET``, ``HEAD`` or ``CONNECT``.
        destination: where to.
        path: with its query, as it was written; empty of a tunnel.
        headers: those that are passed on.
        connection: has read it, and writes its answer.
    """

    method: str
    destination: Destination
    path: str
    headers: Headers
    connection: h11.Connection

    @property
    def authority(self) -> str:
        """The host as a request names it, with its port where that is not the usual one."""
        host, port, is_tunnel = self.destination
        host = f"[{host}]" if ":" in host else host
        return host if port == 80 and not is_tunnel else f"{host}:{port}"


def read_request(head: bytes) -> ProxyRequest:
    """Reads a request.

    Args:
        head: all bytes up to the empty line, and that.

    Raises:
        RefusedError: it is no request that a proxy carries out here.
    """
    if head.count(b"\n") > MOST_LINES:
        raise RefusedError(431, f"the request has more than {MOST_LINES} headers")
    if _WRONG_LINES.search(head):
        raise RefusedError(400, "a line of the request does not end as it should")
    found = [(match[1].lower(), match[2].strip(b" \t")) for match in _FRAMING.finditer(head)]
    framing = dict(found)
    if len(framing) < len(found) or framing.get(b"content-length", b"0") != b"0":
        raise RefusedError(400, "the request says more than once how long it is or where it goes, or has a body")
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(head) + 1)
    try:
        connection.receive_data(head)
        event = connection.next_event()
        ending = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise RefusedError(400, f"the request cannot be read: {error}") from None
    if not isinstance(event, h11.Request) or event.http_version not in (b"1.0", b"1.1"):
        raise RefusedError(400, "the request cannot be read")
    method, target = event.method.decode(), event.target.decode()
    if method not in (*METHODS, "CONNECT"):
        raise RefusedError(405, f"{method[:20]} is not carried out: in the clear {' and '.join(METHODS)} are alone")
    if not isinstance(ending, h11.EndOfMessage):
        raise RefusedError(400, "the request has a body")
    destination, path = _tunnel(target) if method == "CONNECT" else _absolute(target)
    hosts = [value.decode("latin-1") for name, value in event.headers if name == b"host"]
    if any(_place(host, 443 if method == "CONNECT" else 80) != destination[:2] for host in hosts):
        raise RefusedError(400, "the header Host is not the host of the request")
    return ProxyRequest(method, destination, path, end_to_end(list(event.headers)), connection)


def end_to_end(headers: Headers) -> Headers:
    """The headers of a message that are not of its connection alone.

    Args:
        headers: with names in lower case.
    """
    lists = [value for name, value in headers if name == b"connection"]
    named = {word.strip().lower() for value in lists for word in value.split(b",")}
    return [(name, value) for name, value in headers if name not in _OF_CONNECTION and name not in named]


def _tunnel(target: str) -> tuple[Destination, str]:
    host, port = _place(target, 0)
    if not port:
        raise RefusedError(400, "a tunnel needs a host and a port")
    return Destination(host, port, True), ""


def _absolute(target: str) -> tuple[Destination, str]:
    match = _TARGET.fullmatch(target)
    if match is None:
        raise RefusedError(400, "the request names no URL that begins with http://, or one of another form")
    if _HIDDEN_LINES.search(match[2]):
        raise RefusedError(400, "the path of the request hides the end of a line")
    return Destination(*_place(match[1], 80), False), match[2] or "/"


def _place(text: str, port: int) -> tuple[str, int]:
    try:
        host, own = parse_place(text)
    except UserError as error:
        raise RefusedError(400, str(error)) from None
    return host, own or port
