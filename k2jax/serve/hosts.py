"""Which names a server without keys answers to: a page of the web must not use it through its reader's browser.

A page can have its own name resolve to this machine, and then read what the server answers; such a request names the
page's host. One that a page sends to this server's name, whose answer it cannot read, names the page as its origin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
import ipaddress
import socket
from urllib.parse import urlsplit

_LOCAL = ("localhost",)


class ServedHosts:
    """The hosts by which a server may be called: itself by name or address, and what its operator adds."""

    def __init__(self, bound: str, added: Collection[str] = ()):
        """Names them.

        Args:
            bound: the address or name that it listens on.
            added: further names, of a proxy or a cluster's service.
        """
        address = _address(bound)
        self._everywhere = address is not None and address.is_unspecified
        self._names = {name.lower().rstrip(".") for name in (*_LOCAL, bound, *added)}
        if self._everywhere:
            self._names.add(socket.gethostname().lower())

    def problem(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Why a request is refused; empty where it is not.

        Args:
            headers: of an ASGI scope, their names in lower case.
        """
        headers = list(headers)
        for name, value in headers:
            if name == b"origin" and not self._has(value.decode("latin-1")):
                return "pages of other origins may not use a server without API keys"
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) == 1 and self._has(f"//{hosts[0]}"):
            return ""
        return f"this server is not called {hosts[0][:100]!a}" if hosts else "the request names no host"

    def _has(self, url: str) -> bool:
        """Whether the host of a URL is one of them, whatever its port."""
        try:
            parts = urlsplit(url)
            name, _ = parts.hostname or "", parts.port
        except ValueError:
            return False
        if parts.username is not None:
            return False
        address = _address(name)
        if address is not None and (address.is_loopback or self._everywhere):
            return True  # a page has a name
        return name.rstrip(".") in self._names


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
