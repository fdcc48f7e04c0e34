"""The tools ``search`` and ``browse`` over the generated world of a task."""

from __future__ import annotations

from k2jax.env.tasks.search_tasks import WORLD
from k2jax.env.tasks.search_world import search_world
from k2jax.env.toolsets.functions import FunctionTools
from k2jax.env.toolsets.search import SearchTools
from k2jax.env.toolsets.types import Workplace
from k2jax.errors import UserError


class WorldTools(SearchTools):
    """Search with a limit on results, and pages of a limited length; the task's metadata say of which world."""

    def __init__(self):
        FunctionTools.__init__(self, [self.search, self.browse])

    async def open(self, workplace: Workplace) -> None:
        """Makes the world, where this process has not made it already.

        Raises:
            UserError: the task names no world.
        """
        try:
            told = workplace.task.metadata[WORLD]
            self._results, self._page = int(told["results"]), int(told["page"])
            self._corpus = search_world(int(told["documents"]), int(told["seed"])).corpus
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the task {workplace.task.id!r} names no world; use the dataset 'search_world'") from None
