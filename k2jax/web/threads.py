"""Threads in which the messages of requests are read, so that the event loop serves other clients meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

READERS = 4
"""Requests that may have images and are read at a time, each of which may hold 600 MB of patches nobody has counted."""


class RequestReaders:
    """Runs what reads requests in threads.

    Args:
        images: whether requests may have images: then ``READERS`` of them are read at a time.
    """

    def __init__(self, images: bool):
        self._free = asyncio.Semaphore(READERS) if images else None

    async def run(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns or raises in a thread."""
        if self._free is None:
            return await run_in_threadpool(read, *arguments)
        async with self._free:
            return await run_in_threadpool(read, *arguments)
