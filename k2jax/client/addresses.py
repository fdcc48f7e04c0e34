"""Which addresses belong to the internet at large: names that others own may be resolved to any."""

from __future__ import annotations

import ipaddress

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # addresses of IPv4 in those of IPv6
_OF_CLOUDS = (ipaddress.IPv4Network("168.63.129.16/32"), ipaddress.IPv4Network("192.0.0.0/24"))  # their machines' own
_ALLOCATED = ipaddress.IPv6Network("2000::/3")  # to anyone


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    return ipaddress.ip_address(address).is_loopback


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet at large; of one that IPv4 is translated to, whether that does."""
    own = ipaddress.ip_address(address)
    if isinstance(own, ipaddress.IPv4Address):
        return own.is_global and not own.is_multicast and not any(own in network for network in _OF_CLOUDS)
    if (inner := _inner(own)) is not None:
        return is_public(str(inner))
    return own in _ALLOCATED and own.is_global


def is_translated(address: str) -> bool:
    """Whether an address of IPv6 stands for one of IPv4, which another machine reaches."""
    own = ipaddress.ip_address(address)
    return isinstance(own, ipaddress.IPv6Address) and (_inner(own) is not None or own.teredo is not None)


def _inner(own: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if own in _TRANSLATED:
        return ipaddress.IPv4Address(int(own) & 0xFFFFFFFF)
    return own.ipv4_mapped or own.sixtofour
