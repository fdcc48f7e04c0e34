"""Attacks of many clients with the key on a server in this process; prints by how much its memory has grown [MiB].

The clients are threads with plain sockets, which need no memory to speak of.
"""

import asyncio
import json
import resource
import socket
import sys
import threading
import time

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.environments.serve import EnvironmentServer, serving

KEY = "k"
CLIENTS = 64
MEBI = 1 << 20
TASK = {
    "id": "a",
    "domain": "d",
    "instruction": [{"role": "user", "content": "hi"}],
    "verifier": "final_answer",
    "environment": "tools",
    "tools": ["calculator"],
}
HEAD = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer {key}\r\n\r\n"
)
LARGE = 8 * MEBI - 4096


def reset_with(**fields):
    return json.dumps({"method": "reset", "task": json.dumps(TASK | fields), "seed": 0}).encode()


def lists():
    """Brackets, of which each becomes a Python list."""
    return b"[" + b"[]," * (LARGE // 3) + b"[]]"


def inner_lists():
    """The same inside the task, which is a text in the request."""
    return json.dumps({"method": "reset", "task": '{"metadata":[' + "[]," * (LARGE // 3) + "[]]}", "seed": 0}).encode()


def wide():
    """A text of which one character makes all others four bytes wide."""
    return reset_with(metadata={"x": "a" * (LARGE - 400) + "😀"})


def held():
    """A task that the environment keeps."""
    return reset_with(metadata={"x": "a" * (LARGE - 4096)})


def unread():
    """A task whose instruction is the reply, which nobody reads."""
    return reset_with(instruction=[{"role": "user", "content": "a" * (LARGE - 4096)}])


PAYLOADS = {"lists": lists, "inner_lists": inner_lists, "wide": wide, "stalled": held, "held": held, "unread": unread}
"""Messages by name; of a stalled client all but the end of the message is sent."""


def client(port, payload, sent, stop, key=KEY):
    """Sends so many bytes of a message, and takes no answer until it is told to stop."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HEAD.format(key=key).encode())
        connection.recv(1)
        frame = b"\x81\xff" + len(payload).to_bytes(8, "big") + b"\0" * 4
        try:
            connection.sendall(frame)
            connection.sendall(memoryview(payload)[:sent])
        except OSError:
            pass
        stop.wait()


async def attack(name):
    payload = PAYLOADS[name]()
    sent = len(payload) - (100 if name == "stalled" else 0)
    server = EnvironmentServer(EnvironmentMaker(), KEY)
    async with serving(server) as url:
        stop = threading.Event()
        arguments = (int(url.rpartition(":")[2]), payload, sent, stop)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        threads = [threading.Thread(target=client, args=arguments, daemon=True) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        longest = 0.0
        for _ in range(20):  # the loop goes on meanwhile
            began = time.monotonic()
            await asyncio.sleep(0.1)
            longest = max(longest, time.monotonic() - began)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
        print(f"{name}: longest turn of the loop {longest:.2f} s", file=sys.stderr)
        stop.set()


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1]))
