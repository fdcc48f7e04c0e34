"""A gateway that listens, in a thread, for the official clients and for disconnects."""

import contextlib
import socket
import threading

import httpx
import uvicorn

from k2jax.agents.web.server import server_config
from k2jax.gateway import RolloutAccess
from tests.agents.gateway.scripted import OPERATOR, Bench


class LiveGateway:
    """The address of a running gateway, its bench, and the operator's requests."""

    def __init__(self, url, bench):
        self.url, self.bench = url, bench
        self.operator = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {OPERATOR}"}, timeout=30)

    def open(self, **values):
        values = {"task": "t", "sampling": {"max_tokens": 500, "seed": 5}} | values
        return RolloutAccess(**self.operator.post("/rollouts", json=values).raise_for_status().json())

    def close(self, access, **values):
        answer = self.operator.post(f"/rollouts/{access.rollout}/close", json=values)
        return answer.raise_for_status().json()

    def session(self, access):
        return self.bench.gateway.session(access.rollout)


@contextlib.contextmanager
def live_gateway(reply, folder=None, **limits):
    """A gateway on a free port, until the end of the block."""
    bench = Bench(reply, folder, **limits)
    sock = socket.create_server(("127.0.0.1", 0))
    config = server_config(bench.app)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    running = LiveGateway(f"http://127.0.0.1:{sock.getsockname()[1]}", bench)
    try:
        yield running
    finally:
        running.operator.close()
        server.should_exit = True
        thread.join(10)
        bench.gateway.release_folder()
