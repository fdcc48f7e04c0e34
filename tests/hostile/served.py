"""``python -m tests.hostile.served MODULE ARGUMENTS``: a command that serves, as a user starts it, with a probe in it.

The probe is a task of the server's own event loop; nothing else of the command is changed.
"""

import asyncio
import contextlib
import os
import runpy
import socket
import sys

from tests.hostile.probe import VARIABLE, Channel, Probe, answering


def main(module: str) -> None:
    """Runs the module as ``python -m`` does."""
    channel, probe, tasks = Channel(socket.socket(fileno=int(os.environ.pop(VARIABLE)))), Probe(), []
    answering(channel, probe)

    def watch() -> None:
        tasks.append(asyncio.get_running_loop().create_task(probe.run()))

    if module == "k2jax.env.serve":
        from k2jax.agents.environments import serve

        serving = serve.serving

        @contextlib.asynccontextmanager
        async def watched(*arguments, **options):
            watch()
            async with serving(*arguments, **options) as url:
                yield url

        serve.serving = watched
    else:
        from k2jax.agents.web.server import Server

        startup = Server.startup

        async def watched_startup(self, sockets=None):
            watch()
            await startup(self, sockets)

        Server.startup = watched_startup
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
