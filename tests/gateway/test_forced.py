"""Scripted ids behind the gateway, scored by the engine: recorded log-probabilities are one forward pass's."""

import asyncio

import numpy as np

from k2jax.api import ModelCard
from k2jax.client import Sampling
from k2jax.config import replace_keys
from k2jax.gateway import Gateway
from k2jax.gateway.app import make_gateway_app
from k2jax.inference import Worker
from k2jax.inference.client import ForcedClient
from k2jax.trajectory import verify
from tests.gateway.agents import AGENTS, cline, openclaw
from tests.gateway.scripted import CHAT, TOKENIZER, Bench, post, spec
from tests.gateway.test_agents import reply
from tests.inference.tiny import GQA, engine, oracle

MODEL = replace_keys(GQA, {"vocab": TOKENIZER.vocab_size})
TEMPERATURE = 0.7


class ForcedBench(Bench):
    """A gateway over an engine that scores what the script says."""

    def __init__(self, worker):
        card = ModelCard("k2", TOKENIZER, TOKENIZER.vocab_size, 1024, CHAT)
        self.gateway = Gateway(ForcedClient(worker, reply), card)
        self.app = make_gateway_app(self.gateway)


def test_recorded_logprobs_are_those_of_one_forward_pass():
    worker = Worker(engine(MODEL, version=3, max_length=1024))
    bench = ForcedBench(worker)
    trajectories = []

    async def run():
        async with bench.http() as http:
            for agent in (cline, openclaw):
                access = bench.gateway.open(spec(sampling=Sampling(max_tokens=200, temperature=TEMPERATURE)))

                async def send(path, body, access=access):
                    response = await post(http, access, path, body)
                    assert response.status_code == 200, response.text
                    return response.json()

                await agent(send)
                kinds = [request["kind"] for request in bench.gateway.session(access.rollout).requests]
                assert kinds == AGENTS[agent]
                trajectories.extend(await bench.gateway.close(access.rollout))

    asyncio.run(run())
    worker.stop()
    scored = 0
    for trajectory in trajectories:
        assert verify(trajectory, MODEL.vocab) == []
        for index, node in enumerate(trajectory.nodes):
            if node.turn >= 0:
                path = trajectory.path_tokens(index)
                before = len(path) - len(node.tokens)
                expected = oracle(MODEL, path.tolist(), TEMPERATURE)[np.arange(before - 1, len(path) - 1), node.tokens]
                np.testing.assert_allclose(node.logprobs, expected, atol=1e-4)
                assert set(node.versions.tolist()) == {3} and node.temperature == TEMPERATURE
                scored += len(node.tokens)
    assert scored > 100
