"""``python -m tests.gateway.attacked FOLDER``: a gateway as the command serves it, which says how it bears an attack.

The first line is a JSON object: the URL, the rollouts' paths and keys, and the path of a Unix socket that serves the
first of them as it does an agent in a sandbox. Every line that is read is answered with the longest pause of the event
loop since the last one [s] and the most memory that the process has had [bytes].
"""

import asyncio
import json
from pathlib import Path
import sys
import threading
import time

from k2jax.gateway.socket import rollout_socket
from k2jax.web.server import open_socket, run_server
from tests.gateway.scripted import Bench, reply_ids, spec

ROLLOUTS = 4
PROBE_SECONDS = 0.01


def most_memory():
    """The high-water mark of this process's memory [bytes]."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


class Probe:
    """The longest pause of an event loop since it was last asked for."""

    longest = 0.0

    async def run(self):
        while True:
            begun = time.monotonic()
            await asyncio.sleep(PROBE_SECONDS)
            self.longest = max(self.longest, time.monotonic() - begun - PROBE_SECONDS)


def answer_lines(probe):
    """Answers on the standard output, from a thread of its own."""
    for _ in sys.stdin:
        print(json.dumps({"pause": probe.longest, "memory": most_memory()}), flush=True)
        probe.longest = 0.0


def main(folder):
    bench, probe = Bench(lambda prompt, sampling: reply_ids("", "Done."), f"{folder}/gateway"), Probe()
    accesses = [bench.gateway.open(spec(), f"r{i}") for i in range(ROLLOUTS)]
    sock = open_socket("127.0.0.1", 0)
    file = Path(folder) / "socket"

    async def app(scope, receive, send):
        await bench.app(scope, receive, send)

    async def beside():
        tasks.append(asyncio.create_task(probe.run()))
        async with rollout_socket(bench.app, accesses[0].path, file):
            await asyncio.Event().wait()

    tasks = []

    async def first(scope, receive, send):
        if not tasks:  # the loop is the server's own
            tasks.append(asyncio.create_task(beside()))
        await app(scope, receive, send)

    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    print(json.dumps({"url": url, "socket": str(file), "rollouts": [a._asdict() for a in accesses]}), flush=True)
    threading.Thread(target=answer_lines, args=(probe,), daemon=True).start()
    run_server(first, bench.gateway, sock, 1.0, "listening")


if __name__ == "__main__":
    main(sys.argv[1])
