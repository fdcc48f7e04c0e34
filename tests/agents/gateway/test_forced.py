"""Scripted ids behind the gateway, scored by the engine: recorded log-probabilities are one forward pass's."""

import asyncio

import numpy as np

from k2jax.agents.api import ModelCard
from k2jax.agents.gateway import Gateway
from k2jax.agents.gateway.app import make_gateway_app
from k2jax.client import Sampling
from k2jax.config import replace_keys
from k2jax.inference import Worker
from k2jax.inference.client import ForcedClient
from k2jax.trajectory import verify
from tests.agents.gateway.agents import cline
from tests.agents.gateway.scripted import CHAT, TOKENIZER, Bench, post, spec
from tests.agents.gateway.test_agents import reply
from tests.inference.tiny import GQA, engine, oracle

MODEL = replace_keys(GQA, {"vocab": TOKENIZER.vocab_size})
TEMPERATURE = 0.7


class ForcedBench(Bench):
    """A gateway over an engine that scores what the script says."""

    def __init__(self, worker):
        card = ModelCard("k2", TOKENIZER, TOKENIZER.vocab_size, 1024, chat=CHAT)
        self.gateway = Gateway(ForcedClient(worker, reply), card)
        self.app = make_gateway_app(self.gateway)


def test_recorded_logprobs_are_those_of_one_forward_pass():
    worker = Worker(engine(MODEL, version=3, max_length=1024, page_size=256, slots=1))
    bench = ForcedBench(worker)

    async def run():
        access = bench.gateway.open(spec(sampling=Sampling(max_tokens=200, temperature=TEMPERATURE)))
        async with bench.http() as http:

            async def send(path, body):
                response = await post(http, access, path, body)
                assert response.status_code == 200, response.text
                return response.json()

            await cline(send)
        return await bench.gateway.close(access.rollout)

    [trajectory] = asyncio.run(run())
    worker.stop()
    assert verify(trajectory, MODEL.vocab) == []
    [leaf] = trajectory.leaves()  # one path, so that one forward pass has them all
    path_T = trajectory.path_tokens(leaf)
    expected_TV = oracle(MODEL, path_T.tolist(), TEMPERATURE)
    start, scored = 0, 0
    for node in (trajectory.nodes[index] for index in trajectory.path(leaf)):
        end = start + len(node.tokens)
        if node.turn >= 0:
            expected = expected_TV[np.arange(start - 1, end - 1), node.tokens]
            np.testing.assert_allclose(node.logprobs, expected, atol=1e-4)
            assert set(node.versions.tolist()) == {3} and node.temperature == TEMPERATURE and node.mask.all()
            scored += len(node.tokens)
        start = end
    assert scored == trajectory.sampled_tokens > 50
