"""A gateway that listens, in a thread, for the official clients and for disconnects."""

import contextlib

import httpx

from k2jax.agents.gateway import RolloutAccess
from tests.agents.gateway.scripted import OPERATOR, Bench
from tests.http_server import served


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
    with served(bench.app) as (host, port):
        running = LiveGateway(f"http://{host}:{port}", bench)
        try:
            yield running
        finally:
            running.operator.close()
    bench.gateway.release_folder()
