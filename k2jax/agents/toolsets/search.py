"""The tools ``search`` and ``browse`` over a corpus on this machine, without a network."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import NamedTuple

from k2jax.agents.toolsets.bm25 import BM25Index, words_of
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import ToolError
from k2jax.errors import UserError, abbreviate

_EXCERPT = 30
"""Words of an excerpt."""


class Page(NamedTuple):
    """A document of a corpus.

    Attributes:
        address: by which it is browsed; unique.
        title: of one line.
        text: the whole document.
    """

    address: str
    title: str
    text: str


class Corpus:
    """Documents with an index; it is read once, and all episodes of a process share it.

    Raises:
        UserError: two documents have one address.

    Attributes:
        pages: the documents in their order.
    """

    def __init__(self, pages: list[Page]):
        self.pages = pages
        self._by_address = {page.address: page for page in pages}
        if len(self._by_address) < len(pages):
            raise UserError("two documents of the corpus have one address; addresses must differ")
        self._index = BM25Index([f"{page.title}\n{page.text}" for page in pages])

    def search(self, query: str, count: int) -> list[Page]:
        """The best documents for a query, the best first."""
        return [self.pages[number] for number in self._index.best(query, count)]

    def page(self, address: str) -> Page | None:
        """The document at an address, or None."""
        return self._by_address.get(address)


class SearchTools(FunctionTools):
    """Full-text search with a limit on results, and pages of a limited length.

    Args:
        corpus: a file of JSON lines ``{"address", "title", "text"}``.
        results: documents that a search shows.
        page: characters that ``browse`` shows at a time.

    Raises:
        UserError: the file cannot be read.
    """

    def __init__(self, corpus: str, results: int = 5, page: int = 4000):
        super().__init__([self.search, self.browse], concurrent=True)
        if results < 1 or page < 1:
            raise UserError(f"the toolset 'search' has results={results} and page={page}; both must be positive")
        self._results, self._page = results, page
        path = os.path.abspath(corpus)
        self._corpus = read_corpus(path, _modified(path))

    def search(self, query: str) -> str:
        """Finds documents by the words of a query, and shows the address, title and an excerpt of the best.

        Args:
            query: a few words.
        """
        found = self._corpus.search(query, self._results)
        if not found:
            return "nothing was found"
        return "\n".join(f"{page.address} | {page.title} | {excerpt(page.text, query)}" for page in found)

    def browse(self, address: str, part: int = 1) -> str:
        """Shows a document, or a part of a long one.

        Args:
            address: as search shows it.
            part: number of the part, from 1.
        """
        page = self._corpus.page(address)
        if page is None:
            raise ToolError(f"there is no document {abbreviate(address)}; search shows addresses")
        parts = max(1, -(-len(page.text) // self._page))
        if not 1 <= part <= parts:
            raise ToolError(f"{address} has the parts 1 to {parts}")
        shown = page.text[(part - 1) * self._page : part * self._page]
        return f"{page.title}\n{shown}" + (f"\n[part {part} of {parts}]" if parts > 1 else "")


@functools.lru_cache(maxsize=4)
def read_corpus(path: str, modified: int) -> Corpus:
    """A corpus of a file of JSON lines; ``modified`` is when it was written, so that a changed file is read anew.

    Raises:
        UserError: the file cannot be read, or a line is no document.
    """
    pages = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                pages.append(Page(str(record["address"]), " ".join(str(record["title"]).split()), str(record["text"])))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"line {number} of {path} is no document with address, title and text") from None
    return Corpus(pages)


def _modified(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError as error:
        raise UserError(f"the corpus {path} cannot be read: {error.strerror}") from None


def excerpt(text: str, query: str) -> str:
    """The words around the first word of the query that occurs, on one line."""
    words, wanted = text.split(), set(words_of(query))
    hits = (place for place, word in enumerate(words) if wanted & set(words_of(word)))
    begin = max(0, next(hits, 0) - _EXCERPT // 3)
    shown = words[begin : begin + _EXCERPT]
    return f"{'... ' * (begin > 0)}{' '.join(shown)}{' ...' * (begin + len(shown) < len(words))}"
