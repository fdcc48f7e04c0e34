"""What the scheduler learns of its engines: how full their caches are decides how many episodes run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import contextlib
from typing import TYPE_CHECKING

from k2jax.agents.collect.engine_client import EngineSocketClient
from k2jax.agents.collect.engine_messages import EngineLoad

if TYPE_CHECKING:
    from k2jax.agents.collect.manager import RolloutManager


class LoadWatch:
    """Hands what engines say of themselves to a manager, while ``async with`` lasts.

    Args:
        paths: sockets of the engines.
        manager: it has an admission.
    """

    def __init__(self, paths: Sequence[str], manager: RolloutManager):
        self._manager = manager
        self._clients = [EngineSocketClient(path) for path in paths]
        self._preemptions = [0] * len(paths)

    async def __aenter__(self) -> LoadWatch:
        for number, client in enumerate(self._clients):
            client.on_load = lambda load, number=number: self._on_load(number, load)
        self._connecting = asyncio.gather(*(client.connect() for client in self._clients))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # engines that never came: their workers say so
            await self._connecting
        for client in self._clients:
            await client.close()

    def _on_load(self, engine: int, load: EngineLoad) -> None:
        preempted = load.preemptions > self._preemptions[engine]
        self._preemptions[engine] = load.preemptions
        self._manager.observe(load.pages, preempted)
