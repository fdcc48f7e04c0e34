"""What sandboxes have in common whose files lie in a folder of this machine."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
import os
from typing import Any

from k2jax.agents.sandbox import files
from k2jax.agents.sandbox.types import WORK, Capabilities, Sandbox, SandboxError

_OF_THE_KERNEL = ("proc", "dev")
FILE_SECONDS = 30.0
"""Wall time in which a file or a listing must be there, and how long the caller waits for it [s]."""
_THREADS = ThreadPoolExecutor(8, "files")
"""Where files are read and written, so that none of them holds up an event loop; threads belong to no loop."""


class FolderSandbox(Sandbox):
    """A sandbox that is open, whose files are read and written from outside without following links.

    Attributes:
        threads: where that is done.

    Args:
        capabilities: those of its backend.
        env: variables of every command.
        root: descriptor of the folder, closed with the sandbox.
        places: folders that a program sees, in the order in which messages name them, and where each lies below the
            root; an empty one is everything else.
        workdir: folder of commands that are given none, and of relative paths.
    """

    threads = _THREADS

    def __init__(
        self,
        capabilities: Capabilities,
        env: Mapping[str, str],
        *,
        root: int,
        places: Mapping[str, str],
        workdir: str = WORK,
    ):
        super().__init__(capabilities, env, workdir)
        self._root: int | None = root
        self._places = places
        self._unfinished: set[Future[Any]] = set()

    async def close(self) -> None:
        """See ``Sandbox.close``."""
        if self._root is None:
            return
        os.close(self._root)
        self._root = None
        await self._end()

    @abc.abstractmethod
    async def _end(self) -> None:
        """Ends what is there beside the descriptor; called once."""

    def _check_open(self) -> None:
        if self._root is None:
            raise SandboxError("the sandbox is closed")

    async def _on_files(self, function: str, path: str, argument: Any) -> Any:
        outside = self._outside(path)
        self._check_open()
        # The thread has a descriptor of its own, whose number is no other file's after the sandbox is closed.
        root = os.dup(self._root)
        try:
            future = self.threads.submit(getattr(files, function), root, outside, argument)
        except BaseException:
            os.close(root)
            raise
        self._unfinished.add(future)

        def done(future: Future[Any]) -> None:
            os.close(root)
            self._unfinished.discard(future)

        future.add_done_callback(done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), FILE_SECONDS)
        except TimeoutError:
            raise SandboxError(f"the files of the sandbox do not answer within {FILE_SECONDS:g} s") from None

    def _outside(self, path: str) -> str:
        """Where a path inside lies below the root."""
        place, below = place_of(path, self._places, self.workdir)
        return place + below


def place_of(path: str, places: Mapping[str, str], workdir: str = WORK) -> tuple[str, str]:
    """Which folder a path inside lies in, and where below it.

    Args:
        path: inside.
        places: names of the folders by their paths inside; see ``FolderSandbox``.
        workdir: folder of relative paths.

    Raises:
        SandboxError: it is in none of them.
    """
    if not path.startswith("/"):
        path = f"{workdir}/{path}"
    path = "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
    for inside, name in places.items():
        if path == inside or path.startswith(f"{inside}/"):
            if not inside and path.split("/")[1] in _OF_THE_KERNEL:
                raise SandboxError(f"{path[:80]!a} is the kernel's")
            return name, path[len(inside) :]
    *others, last = places
    raise SandboxError(f"{path[:80]!a} is not in {', '.join(others)}{' or ' if others else ''}{last}")
