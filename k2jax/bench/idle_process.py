"""A process that does nothing until its input ends: how late its event loop is, is what the machine does to others."""

from __future__ import annotations

import asyncio
import json
import sys

from k2jax.agents.collect.event_loop import LagProbe


async def main() -> None:
    """Prints the lag as JSON."""
    async with LagProbe() as probe:
        await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(probe.lag._asdict()))


if __name__ == "__main__":
    asyncio.run(main())
