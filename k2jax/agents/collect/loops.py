"""Event loops of the manager's processes: uvloop's where it is installed (extra ``rollout``)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end, as ``asyncio.run`` does."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(main)
    return uvloop.run(main)
