"""What sandboxes have in common whose files lie in a folder of this machine."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
import os
from typing import Any, Self

from k2jax.agents.sandbox import files
from k2jax.agents.sandbox.types import MEBI, SandboxError

FILE_SECONDS = 30.0
"""Wall time in which a file or a listing must be there, and how long the caller waits for it [s]."""
_THREADS = ThreadPoolExecutor(8, "sandbox-files")
"""Where files are read and written, so that none of them holds up an event loop; threads belong to no loop."""


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
        return await self._in_thread(files.read_file, self._outside(path), limit)

    async def write(self, path: str, data: bytes) -> None:
        """Replaces a file; see ``Sandbox.write``."""
        await self._in_thread(files.write_file, self._outside(path), data)

    async def list(self, path: str, limit: int = 1000) -> list[str]:
        """Names in a folder; see ``Sandbox.list``."""
        return await self._in_thread(files.list_folder, self._outside(path), limit)

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

    async def _in_thread(self, function: Callable[..., Any], path: str, argument: Any) -> Any:
        """What a function of ``files`` returns or raises, in a thread.

        The thread has a descriptor of its own, whose number is no other file's after the sandbox is closed.
        """
        root = os.dup(self._files())
        try:
            future = _THREADS.submit(function, root, path, argument)
        except BaseException:
            os.close(root)
            raise
        future.add_done_callback(lambda _: os.close(root))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), FILE_SECONDS)
        except TimeoutError:
            raise SandboxError(f"the files of the sandbox do not answer within {FILE_SECONDS:g} s") from None

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
