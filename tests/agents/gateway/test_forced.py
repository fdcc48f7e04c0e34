"""Scripted ids behind the gateway, scored by the engine: recorded log-probabilities are one forward pass's."""

import dataclasses

from k2jax.client import Sampling
from k2jax.config import replace_keys
from k2jax.inference import Worker
from k2jax.inference.client import ForcedClient
from tests.agents.gateway.agents import cline
from tests.agents.gateway.forward_pass import VERSION, check_logprobs
from tests.agents.gateway.scripted import CARD, TOKENIZER, Bench, posted, spec
from tests.agents.gateway.test_agents import reply
from tests.inference.tiny import GQA, engine

MODEL = replace_keys(GQA, {"vocab": TOKENIZER.vocab_size})
TEMPERATURE = 0.7


def test_recorded_logprobs_are_those_of_one_forward_pass():
    worker = Worker(engine(MODEL, version=VERSION, max_length=1024, page_size=256, slots=1))
    bench = Bench(ForcedClient(worker, reply), card=dataclasses.replace(CARD, max_length=1024))
    access = bench.gateway.open(spec(sampling=Sampling(max_tokens=200, temperature=TEMPERATURE)))

    async def talk(http):
        await cline(lambda path, body: posted(http, access, path, body))
        return await bench.gateway.close(access.rollout)

    [trajectory] = bench.run(talk)
    worker.stop()
    assert len(trajectory.leaves()) == 1  # one path, so that one forward pass has them all
    assert check_logprobs(MODEL, trajectory, TEMPERATURE) == trajectory.sampled_tokens > 50
