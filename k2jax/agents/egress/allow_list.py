"""Hosts that sandboxes may reach: what the user allows, and what a task asks for, which others have written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import ipaddress
import re
from typing import Any, NamedTuple

from k2jax.errors import UserError, abbreviate

HOSTS = "hosts"
"""Key of a task's metadata: the hosts that its sandbox must reach, each ``HOST`` or ``HOST:PORT``."""
_MOST_HOSTS = 100
"""That a task may name."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_PLACE = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([1-9][0-9]{0,4}))?")
_PORTS = {"http": 80, "https": 443}
_CHOOSE = "allow it with --hosts=... of a command, or rl.hosts in a config"


class Destination(NamedTuple):
    """What a sandbox may reach.

    Attributes:
        host: a name in lower case, or an address as it is usually written.
        port: of TCP.
        is_tunnel: whether bytes pass as they are, by CONNECT; else requests by GET and HEAD pass.
    """

    host: str
    port: int
    is_tunnel: bool


class AllowList:
    """Exact hosts and ports, and how each may be reached."""

    def __init__(self, destinations: Iterable[Destination] = ()):
        self._destinations = tuple(dict.fromkeys(destinations))

    @classmethod
    def of_user(cls, texts: Sequence[str]) -> AllowList:
        """What a user writes: ``HOST`` or ``http://HOST`` for requests, ``https://HOST`` for tunnels, each with a port.

        Raises:
            UserError: one is no such text; there are no wildcards.
        """
        return cls(_destination(text) for text in texts)

    def __contains__(self, destination: Destination) -> bool:
        return destination in self._destinations

    def chosen(self, asked: Sequence[str]) -> AllowList:
        """What a task may reach that asks for these hosts, each by all of the user's ways or by those at its port.

        Raises:
            UserError: the user has not allowed one of them.
        """
        found: list[Destination] = []
        for text in asked:
            host, port = parse_place(text)
            ways = [each for each in self._destinations if each.host == host and port in (None, each.port)]
            if not ways:
                raise UserError(f"a task asks for the host {abbreviate(text)}, which is not allowed; {_CHOOSE}")
            found += ways
        return AllowList(found)


def asked_hosts(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The hosts that a task asks for.

    Args:
        metadata: of the task.

    Raises:
        UserError: they are no list of hosts.
    """
    hosts = metadata.get(HOSTS, ())
    if not isinstance(hosts, list | tuple) or len(hosts) > _MOST_HOSTS:
        raise UserError(f"{HOSTS} of a task is {abbreviate(hosts)}, and no list of at most {_MOST_HOSTS} hosts")
    for host in hosts:
        if not isinstance(host, str):
            raise UserError(f"{HOSTS} of a task names {abbreviate(host)}, which is no text")
        parse_place(host)
    return tuple(hosts)


def parse_place(text: str) -> tuple[str, int | None]:
    """The host and the port of ``HOST``, ``HOST:PORT`` or ``[ADDRESS]:PORT``; None is no port.

    Each host has one form alone, so that equal texts are equal hosts: names in lower case without a dot at the end,
    addresses of IPv4 as four decimal numbers, those of IPv6 in brackets, short, and without a zone.

    Raises:
        UserError: it is no such text.
    """
    match = _PLACE.fullmatch(text)
    if match is None or int(match[2] or 1) > 65535 or not is_host(match[1]):
        raise UserError(
            f"{abbreviate(text)} is no host: write a name in lower case, or an address as 192.0.2.1 or [2001:db8::1], "
            "with or without a port; there are no wildcards"
        )
    return match[1].strip("[]"), int(match[2]) if match[2] else None


def is_host(text: str) -> bool:
    """Whether a text is a name or an address in its one form; those of IPv6 stand in brackets."""
    try:
        if text.startswith("["):
            return f"[{ipaddress.IPv6Address(text[1:-1])}]" == text and "%" not in text
        if _NUMERIC.fullmatch(text):  # what systems take for an address, in one of several bases
            return str(ipaddress.IPv4Address(text)) == text
    except ValueError:
        return False
    return _NAME.fullmatch(text) is not None


def is_address(host: str) -> bool:
    """Whether a host that has been read is an address."""
    return ":" in host or _NUMERIC.fullmatch(host) is not None


def _destination(text: str) -> Destination:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    if scheme not in _PORTS:
        raise UserError(f"{abbreviate(text)} is no host to allow: write HOST, http://HOST or https://HOST")
    host, port = parse_place(rest)
    return Destination(host, port or _PORTS[scheme], scheme == "https")
