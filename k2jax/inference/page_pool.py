"""Who owns which page of the cache, and which pages hold a prefix that can be used again.

A full page is known by a digest of the weights' version and of every token up to its end, images by their content, so
equal digests mean equal contents. Pages without users keep their contents until they are needed; the least recently
used page goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
import hashlib
import itertools

import numpy as np

from k2jax.inference.forward import SCRATCH_PAGE
from k2jax.inference.media import PlacedChunk, content_of


class PagePool:
    """Reference counts and digests of ``count`` pages of ``size`` tokens; page SCRATCH_PAGE belongs to nobody."""

    def __init__(self, count: int, size: int):
        self.size = size
        self._free = [page for page in range(count - 1, -1, -1) if page != SCRATCH_PAGE]
        self._users = [0] * count
        self._digest: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._experts: dict[int, np.ndarray] = {}  # of known pages, [size, expert layers, active experts]
        self._idle: OrderedDict[int, None] = OrderedDict()  # known pages without users, least recently used first
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
        """A page for one user, dropping an unused prefix where no page is free. Check ``available`` first."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._drop(page)
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

    def cache_prefix(self, page: int, digest: bytes, experts: np.ndarray | None = None) -> None:
        """Records what a full page holds; of two pages with the same contents the first stays the known one.

        Args:
            page: the page.
            digest: of its contents.
            experts: that its tokens were routed to, where they are wanted.
        """
        if digest not in self._page_of and page not in self._digest:
            self._page_of[digest] = page
            self._digest[page] = digest
        if experts is not None and digest in self._page_of:
            self._experts.setdefault(self._page_of[digest], experts)

    def digest(self, page: int) -> bytes:
        """Digest of the contents of a known page."""
        return self._digest[page]

    def find(self, digests: Iterable[bytes], with_experts: bool = False) -> list[int]:
        """The known pages of the longest prefix, as far as their tokens' experts are known where those are wanted."""
        pages = itertools.takewhile(lambda page: page is not None, map(self._page_of.get, digests))
        return list(itertools.takewhile(self._experts.__contains__, pages) if with_experts else pages)

    def experts(self, page: int) -> np.ndarray:
        """The experts that a known page's tokens were routed to."""
        return self._experts[page]

    def drop_all(self) -> None:
        """Drops every prefix, as when the weights change."""
        for page in list(self._digest):
            self._drop(page)
        self._free.extend(self._idle)
        self._idle.clear()

    def _drop(self, page: int) -> None:
        del self._page_of[self._digest.pop(page)]
        self._experts.pop(page, None)


def digests(
    tokens: Sequence[int],
    size: int,
    version: int,
    media: Sequence[PlacedChunk] = (),
    *,
    first: int = 0,
    before: bytes | None = None,
) -> Iterator[bytes]:
    """One digest per full page of ``tokens``, of its contents and of all pages before it.

    Args:
        tokens: from the first page on.
        size: tokens in a page.
        version: of the weights.
        media: images among the tokens, which count by their content and place.
        first: number of the page to begin with.
        before: digest of the page before that one; None begins anew.
    """
    digest = version.to_bytes(8, "little", signed=True) if before is None else before
    for end in range((first + 1) * size, len(tokens) + 1, size):
        page = np.asarray(tokens[end - size : end], np.int64).tobytes()
        shown = content_of(media, end - size, end)
        digest = hashlib.blake2b(digest + page + shown, digest_size=16).digest()
        yield digest
