"""Who owns which page of the cache, and which pages hold a prefix that can be used again.

A full page is known by a digest of the weights' version and of every token up to its end, so equal digests mean equal
contents. Pages that nobody uses keep their contents until they are needed, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
import hashlib
import itertools

import numpy as np

from k2jax.inference.forward import SCRATCH_PAGE


class Pages:
    """Reference counts and digests of ``count`` pages of ``size`` tokens; page SCRATCH_PAGE belongs to nobody."""

    def __init__(self, count: int, size: int):
        self.size = size
        self._free = [page for page in range(count - 1, -1, -1) if page != SCRATCH_PAGE]
        self._users = [0] * count
        self._digest: dict[int, bytes] = {}
        self._known: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known pages without users, longest unused first
        self.total = len(self._free)

    @property
    def available(self) -> int:
        """Pages that can be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def in_use(self) -> int:
        """Pages that sequences hold."""
        return self.total - self.available

    @property
    def cached(self) -> int:
        """Pages without users that hold a prefix."""
        return len(self._idle)

    def take(self) -> int:
        """A page for one user, forgetting an unused prefix where there is no other. Check ``available`` first."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        self._users[page] = 1
        return page

    def share(self, page: int) -> None:
        """Adds a user to a known page."""
        self._idle.pop(page, None)
        self._users[page] += 1

    def release(self, page: int) -> None:
        """Removes a user."""
        self._users[page] -= 1
        if self._users[page]:
            return
        if page in self._digest:
            self._idle[page] = None
        else:
            self._free.append(page)

    def learn(self, page: int, digest: bytes) -> None:
        """Records what a full page holds; of two pages with the same contents the first stays the known one."""
        if digest not in self._known and page not in self._digest:
            self._known[digest] = page
            self._digest[page] = digest

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The known pages of the longest prefix."""
        return list(itertools.takewhile(lambda page: page is not None, map(self._known.get, digests)))

    def forget_all(self) -> None:
        """Makes every prefix unknown, as when the weights change."""
        for page in list(self._digest):
            self._forget(page)
        self._free.extend(self._idle)
        self._idle.clear()

    def _forget(self, page: int) -> None:
        del self._known[self._digest.pop(page)]


def digests(tokens: Sequence[int], size: int, version: int) -> Iterator[bytes]:
    """One digest per full page of ``tokens``."""
    digest = version.to_bytes(8, "little", signed=True)
    for end in range(size, len(tokens) + 1, size):
        page = np.asarray(tokens[end - size : end], np.int64).tobytes()
        digest = hashlib.blake2b(digest + page, digest_size=16).digest()
        yield digest
