"""The server over the real engine with a tiny random model: numbers against the model itself, and many clients."""

import asyncio
import threading

import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest

from k2jax.config.schema import GQAConfig, ModelConfig
from k2jax.inference.engine import Engine
from k2jax.model import K2, model_specs
from k2jax.params import initialize
from tests.agents.api.sample import NAME
from tests.serve.fakes import live
from tests.text import kimi

TOKENIZER = kimi.tokenizer()
TINY = ModelConfig(
    layers=2, dense_layers=2, d_model=32, heads=4, attention="gqa", gqa=GQAConfig(kv_heads=2, head_dim=8), dense_ffn=48,
    vocab=TOKENIZER.vocab_size, init_std=0.2,
)  # fmt: skip
PROMPT = TOKENIZER.encode("The quick brown fox's 12345 jumps; 月之暗面 it'll land where they're WAITING.")
CLIENTS = 24


@pytest.fixture(scope="module")
def model():
    return K2(TINY), initialize(model_specs(TINY), jax.random.key(0), TINY.init_std)


@pytest.fixture(scope="module")
def server(model):
    with live(Engine(TINY, model[1], slots=4, max_length=160), TOKENIZER, vocab=TINY.vocab, max_length=160) as running:
        yield running


def logprobs_of(model, ids):
    network, params = model
    logits = jax.jit(lambda ids: network.apply({"params": params}, ids).logits[0])(jnp.asarray([ids]))
    chosen = jax.nn.log_softmax(logits[:-1])[jnp.arange(len(ids) - 1), jnp.asarray(ids[1:])]
    return np.asarray(chosen)


def test_logprobs_are_the_models(server, model):
    client = server.openai()
    options = {"model": NAME, "prompt": PROMPT, "seed": 5, "extra_body": {"return_token_ids": True}}
    choice = client.completions.create(**options, max_tokens=12, logprobs=3).choices[0]
    ids = PROMPT + choice.token_ids
    expected = logprobs_of(model, ids)
    assert np.abs(expected[len(PROMPT) - 1 :] - choice.logprobs.token_logprobs).max() < 1e-3
    scored = client.completions.create(model=NAME, prompt=ids, echo=True, logprobs=0, max_tokens=0).choices[0]
    assert np.abs(expected - scored.logprobs.token_logprobs[1:]).max() < 1e-3
    again = client.completions.create(**options, max_tokens=12, logprobs=3).choices[0]
    assert again.token_ids == choice.token_ids
    other = client.completions.create(**options | {"seed": 6}, max_tokens=12).choices[0]
    assert other.token_ids != choice.token_ids


def test_a_repeated_prompt_comes_from_the_cache(server):
    client = server.openai()
    messages = [{"role": "user", "content": "月之暗面 " * 8}]
    usage = [client.chat.completions.create(model=NAME, messages=messages, max_tokens=2).usage for _ in range(2)]
    assert 16 <= usage[1].prompt_tokens_details.cached_tokens < usage[1].prompt_tokens
    assert server.metrics()["k2jax_prompt_tokens_cached_total"] >= 16


def test_many_clients_some_of_whom_leave(server, monkeypatch):
    """Every third leaves, from its slot or from the queue; the others get all they asked for, and nothing is left."""
    before, step, steps, gone = server.metrics(), server.engine.step, [], threading.Event()

    def held():
        """The engine's steps, which wait after some tokens of the first streams until all that leave have left."""
        steps.append(None)
        assert len(steps) < 6 or gone.wait(60)
        return step()

    monkeypatch.setattr(server.engine, "step", held)

    async def ask(client, number):
        """A stream that cannot end by itself before its client leaves."""
        return await client.completions.create(
            model=NAME, prompt=f"number {number}", max_tokens=60, seed=number, stream=True, logprobs=0,
            stream_options={"include_usage": True}, stop=["never to be seen"], extra_body={"ignore_eos": True},
        )  # fmt: skip

    async def read(stream):
        tokens, finish, usage = 0, None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                tokens += len(choice.logprobs.tokens) if choice.logprobs else 0
                finish = choice.finish_reason or finish
        return tokens, finish, usage

    async def everyone():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            streams = await asyncio.gather(*(ask(client, number) for number in range(CLIENTS)))
            while len(steps) < 6:
                await asyncio.sleep(0.01)
            await asyncio.gather(*(stream.close() for stream in streams[::3]))
            while disconnects() < CLIENTS // 3:
                await asyncio.sleep(0.01)
            gone.set()
            return await asyncio.gather(*map(read, (s for i, s in enumerate(streams) if i % 3)))

    def disconnects():
        return server.metrics()["k2jax_disconnects_total"] - before["k2jax_disconnects_total"]

    for tokens, finish, usage in asyncio.run(everyone()):
        assert (finish, tokens) == ("length", usage.completion_tokens) == ("length", 60)
    after = server.wait_until_idle()
    assert after["k2jax_pages_in_use"] == after["k2jax_running"] == after["k2jax_waiting"] == 0
    assert disconnects() == CLIENTS // 3
    assert len(server.service._jobs) == 0
    # The slots are good for more.
    assert server.post("completions", prompt="a", max_tokens=3).json()["usage"]["completion_tokens"] >= 1
