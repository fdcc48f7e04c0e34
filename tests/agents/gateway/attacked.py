"""``python -m tests.agents.gateway.attacked FOLDER``: a gateway as the command serves it, which says how it bears it.

The first line is a JSON object: the port, the rollouts' paths and keys, and the path of a Unix socket that serves the
first of them as it does an agent in a sandbox. Every line that is read is answered with what the process has cost since
the last one, see ``tests.hostile.probe``.
"""

import asyncio
import json
from pathlib import Path
import sys
import threading

from k2jax import runtime
from k2jax.agents.gateway.socket import rollout_socket
from k2jax.agents.web.arrivals import BODY_WITH_IMAGES
from k2jax.agents.web.server import open_socket, run_server
from tests.agents.gateway.scripted import Bench, spec
from tests.hostile.probe import Probe

ROLLOUTS = 4


def answer_lines(probe):
    """Answers on the standard output, from a thread of its own."""
    for _ in sys.stdin:
        print(json.dumps(probe.measured()), flush=True)


def main(folder):
    bench, probe, tasks = Bench(folder=f"{folder}/gateway", max_body_bytes=BODY_WITH_IMAGES), Probe(), []
    accesses = [bench.gateway.open(spec(), f"r{i}") for i in range(ROLLOUTS)]
    runtime.keep_freed_memory()  # as in the command
    sock, file = open_socket("127.0.0.1", 0), Path(folder) / "socket"

    async def beside():
        tasks.append(asyncio.create_task(probe.run()))
        async with rollout_socket(bench.app, accesses[0].path, file):
            await asyncio.Event().wait()

    async def app(scope, receive, send):
        if not tasks:  # the loop is the server's own
            tasks.append(asyncio.create_task(beside()))
        await bench.app(scope, receive, send)

    rollouts = [access._asdict() for access in accesses]
    print(json.dumps({"port": sock.getsockname()[1], "socket": str(file), "rollouts": rollouts}), flush=True)
    threading.Thread(target=answer_lines, args=(probe,), daemon=True).start()
    run_server(app, bench.gateway, sock, 1.0, "listening")


if __name__ == "__main__":
    main(sys.argv[1])
