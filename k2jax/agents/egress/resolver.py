"""Names become addresses once in an episode: whoever owns a name cannot lead a later request elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
import functools
import socket

from k2jax.agents.egress.allow_list import AllowList, Destination, is_address
from k2jax.client.addresses import is_public, is_translated

LOOKUP_SECONDS = 10.0
"""In which a name must be resolved [s]."""
_MOST_ADDRESSES = 8
_THREADS = ThreadPoolExecutor(8, "names")
"""Of lookups alone: one whose server says nothing goes on when nobody waits for it any more."""

Lookup = Callable[[str], Awaitable[list[str]]]


async def look_up(host: str) -> list[str]:
    """The addresses of a name, as this machine resolves it.

    Raises:
        OSError: it has none.
    """
    resolve = functools.partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_THREADS, resolve)
    return [entry[4][0] for entry in found]


class PinnedResolver:
    """The addresses of names; what a name was first resolved to it keeps.

    Args:
        allowed: of the user: of addresses that are not public, those that it names literally, with their ports.
        lookup: of names; see ``look_up``.
    """

    def __init__(self, allowed: AllowList, lookup: Lookup):
        self._allowed, self._lookup = allowed, lookup
        self._pinned: dict[str, list[str]] = {}
        self._lock = asyncio.Lock()

    async def addresses(self, destination: Destination) -> list[str]:
        """Where a host may be reached; none where it has no address that is public.

        Raises:
            OSError: it cannot be resolved; another attempt may.
            TimeoutError: it takes too long.
        """
        if is_address(destination.host):
            return [destination.host]
        async with self._lock:
            if destination.host not in self._pinned:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    found = await self._lookup(destination.host)
                self._pinned[destination.host] = list(dict.fromkeys(found))[:_MOST_ADDRESSES]
        return [each for each in self._pinned[destination.host] if self._may_reach(each, destination)]

    def _may_reach(self, address: str, destination: Destination) -> bool:
        if destination._replace(host=address) in self._allowed:
            return True
        try:
            return is_public(address) and not is_translated(address)
        except ValueError:  # with a zone, for example
            return False
