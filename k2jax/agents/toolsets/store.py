"""The tools ``get`` and ``set``: a key-value store, whose first contents are the task's."""

from __future__ import annotations

from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import ToolError, Workplace

STORE = "store"
"""Key of a task's metadata: texts by key."""
LARGEST = 1 << 20
"""Characters of the keys and values that ``set`` makes room for."""


class StoreTools(FunctionTools):
    """A store that lasts an episode.

    Attributes:
        contents: texts by key.
    """

    def __init__(self):
        super().__init__([self.get, self.set])
        self.contents: dict[str, str] = {}

    async def open(self, workplace: Workplace) -> None:
        """Fills the store with what the task's metadata hold under ``store``."""
        self.contents = {str(key): str(value) for key, value in workplace.task.metadata.get(STORE, {}).items()}

    def get(self, key: str) -> str:
        """Returns the value of a key.

        Args:
            key: that was stored.
        """
        if key not in self.contents:
            raise ToolError(f"there is no key {key!r}")
        return self.contents[key]

    def set(self, key: str, value: str) -> str:
        """Stores a value under a key, in the place of an earlier one.

        Args:
            key: any text.
            value: any text.
        """
        sizes = (len(key) + len(text) for key, text in (self.contents | {key: value}).items())
        if sum(sizes) > LARGEST:
            raise ToolError(f"the store holds no more than {LARGEST:,} characters")
        self.contents[key] = value
        return "ok"
