"""A browser over the generated world of a task: the tools that Kimi K2.5's appendix E.8 names.

``search`` takes several queries in one call. ``open``, ``click``, ``input``, ``find`` and ``scroll`` move the one
window of the agent; each sub-agent has a window of its own.
"""

from __future__ import annotations

from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.search import Corpus, Page, excerpt
from k2jax.agents.toolsets.types import ToolError
from k2jax.errors import abbreviate
from k2jax.tasks.search_world.toolset import WorldTools

MOST_QUERIES = 32
"""Queries of one call, which hold the event loop for a fraction of a millisecond each."""


class Browser:
    """What an agent sees of a corpus.

    Args:
        corpus: its documents; the title of one, where another names it, is a link.
        results: documents that a search shows.
        length: characters that the window shows at a time.
    """

    def __init__(self, corpus: Corpus, results: int, length: int):
        self._corpus, self._results, self._length = corpus, results, length
        self._by_title = {page.title: page for page in corpus.pages}
        self._page, self._part = Page("", "", ""), 0

    def search(self, queries: list[str]) -> str:
        """Finds documents by the words of each query, and shows the address, title and an excerpt of the best.

        Args:
            queries: each of a few words.
        """
        if not queries:
            raise ToolError("there is no query")
        if len(queries) > MOST_QUERIES:
            raise ToolError(f"there are {len(queries):,} queries; one call takes {MOST_QUERIES} at most")
        return "\n\n".join(f"{query}:\n{self._found(query)}" for query in queries)

    def open(self, address: str) -> str:
        """Opens a document.

        Args:
            address: as search shows it.
        """
        page = self._corpus.page(address)
        if page is None:
            raise ToolError(f"there is no document {abbreviate(address)}; search shows addresses")
        return self._show(page)

    def click(self, link: str) -> str:
        """Follows a link of what the window shows.

        Args:
            link: its text.
        """
        if link not in self._links():
            raise ToolError(f"the window shows no link {abbreviate(link)}")
        return self._show(self._by_title[link])

    def input(self, text: str) -> str:
        """Types a text into the search field of the window, which then shows the titles of the best documents.

        Args:
            text: a few words.
        """
        titles = [page.title for page in self._corpus.search(text, self._results)]
        return self._show(Page("", f"Documents about {text}", "\n".join(titles) or "nothing was found"))

    def find(self, text: str) -> str:
        """Finds a text in the open document, from what the window shows on, and moves the window there.

        Args:
            text: as it is written there.
        """
        begin = self._page.text.find(text, self._part * self._length) if text else -1
        if begin < 0:
            raise ToolError(f"from here on the document does not have {abbreviate(text)}")
        return self._show(self._page, begin // self._length)

    def scroll(self, parts: int = 1) -> str:
        """Moves the window over a long document.

        Args:
            parts: by so many; up where negative.
        """
        part = self._part + parts
        if not 0 <= part < self._parts:
            raise ToolError(f"the window shows part {self._part + 1} of {self._parts}")
        return self._show(self._page, part)

    @property
    def _parts(self) -> int:
        return max(1, -(-len(self._page.text) // self._length))

    def _found(self, query: str) -> str:
        pages = self._corpus.search(query, self._results)
        shown = [f"{page.address} | {page.title} | {excerpt(page.text, query)}" for page in pages]
        return "\n".join(shown) or "nothing was found"

    def _shown_text(self) -> str:
        return self._page.text[self._part * self._length : (self._part + 1) * self._length]

    def _links(self) -> list[str]:
        text = self._shown_text()
        return [title for title in self._by_title if title in text and title != self._page.title]

    def _show(self, page: Page, part: int = 0) -> str:
        self._page, self._part = page, part
        lines = [page.title, self._shown_text()]
        lines += [f"[part {part + 1} of {self._parts}]"] if self._parts > 1 else []
        return "\n".join([*lines, f"[links: {' | '.join(self._links())}]"])


class BrowserTools(WorldTools):
    """The tools of ``Browser``, and ``download`` for some tasks; the task's metadata say of which world."""

    def __init__(self):
        self._declare(Browser(Corpus([]), 1, 1))

    def _begin(self, downloads: bool) -> None:
        self._declare(Browser(self._corpus, self._results, self._page), *([self.download] if downloads else []))

    def _declare(self, browser: Browser, *others) -> None:
        moves = [browser.open, browser.click, browser.input, browser.find, browser.scroll]
        FunctionTools.__init__(self, [browser.search, *moves, *others])  # in order: they share the window
