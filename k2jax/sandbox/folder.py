"""What sandboxes have in common whose files lie in a folder of this machine."""

from __future__ import annotations

import abc
from collections.abc import Mapping
import os
from typing import Self

from k2jax.sandbox import files
from k2jax.sandbox.types import MEBI, SandboxError


class FolderSandbox(abc.ABC):
    """The files of a sandbox that is open, read and written from outside without following links; see ``Sandbox``.

    Args:
        root: descriptor of the folder, closed with the sandbox.
        places: folders that a program sees, in the order in which messages name them, and where each lies below the
            root; a relative path is below ``/work``, which is one of them.
    """

    def __init__(self, root: int, places: Mapping[str, str]):
        self._root: int | None = root
        self._places = places

    async def read(self, path: str, limit: int = MEBI) -> bytes:
        """The beginning of a file; see ``Sandbox.read``. Links are not followed."""
        return files.read_file(self._files(), self._outside(path), limit)

    async def write(self, path: str, data: bytes) -> None:
        """Replaces a file; see ``Sandbox.write``."""
        files.write_file(self._files(), self._outside(path), data)

    async def list(self, path: str, limit: int = 1000) -> list[str]:
        """Names in a folder; see ``Sandbox.list``."""
        return files.list_folder(self._files(), self._outside(path), limit)

    async def close(self) -> None:
        """Ends the sandbox; see ``Sandbox.close``."""
        if self._root is None:
            return
        os.close(self._root)
        self._root = None
        await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abc.abstractmethod
    async def _end(self) -> None:
        """Ends what is there beside the descriptor; called once."""

    def _files(self) -> int:
        if self._root is None:
            raise SandboxError("the sandbox is closed")
        return self._root

    def _outside(self, path: str) -> str:
        """Where a path inside lies below the root."""
        place, below = place_of(path, self._places)
        return place + below


def place_of(path: str, places: Mapping[str, str]) -> tuple[str, str]:
    """Which folder a path inside lies in, and where below it.

    Args:
        path: inside; a relative path is below ``/work``.
        places: names of the folders by their paths inside.

    Raises:
        SandboxError: it is in none of them.
    """
    if not path.startswith("/"):
        path = f"/work/{path}"
    for inside, name in places.items():
        if path == inside or path.startswith(f"{inside}/"):
            return name, path[len(inside) :]
    *others, last = places
    raise SandboxError(f"{path[:80]!a} is not in {', '.join(others)}{' or ' if others else ''}{last}")
