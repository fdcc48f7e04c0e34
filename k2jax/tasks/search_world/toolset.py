"""The tools ``search`` and ``browse``, and for some tasks ``download``, over the generated world of a task."""

from __future__ import annotations

from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.search import SearchTools
from k2jax.agents.toolsets.types import ToolError, Workplace
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.search_world.dataset import WORLD
from k2jax.tasks.search_world.world import receipt, search_world


class WorldTools(SearchTools):
    """Search with a limit on results, and pages of a limited length; the task's metadata say of which world."""

    def __init__(self):
        FunctionTools.__init__(self, [self.search, self.browse], concurrent=True)

    async def open(self, workplace: Workplace) -> None:
        """Makes the world, where this process has not made it already.

        Raises:
            UserError: the task names no world.
        """
        try:
            told = workplace.task.metadata[WORLD]
            self._results, self._page = int(told["results"]), int(told["page"])
            chronicles = int(told.get("chronicles", 0))
            self._corpus = search_world(int(told["documents"]), int(told["seed"]), chronicles).corpus
            self._begin(bool(told.get("download")))
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the task {workplace.task.id!r} names no world; use the dataset 'search_world'") from None

    def _begin(self, downloads: bool) -> None:
        """Declares the tools of the world that is open."""
        if downloads:
            FunctionTools.__init__(self, [self.search, self.browse, self.download], concurrent=True)

    def download(self, address: str) -> str:
        """Downloads a document and shows its receipt.

        Args:
            address: as search shows it.
        """
        page = self._corpus.page(address)
        if page is None:
            raise ToolError(f"there is no document {abbreviate(address)}; search shows addresses")
        return f"{address} | receipt {receipt(page)}"
