"""A stream whose model is silent for longer than its client waits: bytes that say nothing keep it open."""

import asyncio
from types import SimpleNamespace

import anthropic
import httpx
import openai
import pytest

from k2jax.agents.web import http as web
from k2jax.client import ScriptedClient
from tests.agents.api.sample import NAME
from tests.agents.gateway.scripted import TOKENIZER, Bench, plain_reply, spec
from tests.http_server import served
from tests.serve.clients import CLIENTS, user
from tests.serve.fakes import FakeEngine, live

PATIENCE = 1.0
"""Silence after which these clients give up [s]."""
SILENCE = 1.3
"""Of the model, longer than that [s]."""
TIMED_OUT = (openai.APITimeoutError, anthropic.APITimeoutError, httpx.ReadTimeout)


class Paused(ScriptedClient):
    """A model that is held before its first token, and again before its last one, for so many seconds."""

    seconds = SILENCE

    async def generate(self, prompt, sampling, *, on_token=None, **options):
        await asyncio.sleep(self.seconds)
        completion = await super().generate(prompt, sampling, **options)
        for token, logprob in zip(completion.tokens[:-1], completion.logprobs[:-1], strict=True):
            on_token(int(token), float(logprob))
        await asyncio.sleep(self.seconds)
        on_token(int(completion.tokens[-1]), float(completion.logprobs[-1]))
        return completion


@pytest.fixture(scope="module")
def server():
    bench = Bench(Paused(plain_reply, version=3))
    with served(bench.app) as (host, port):
        yield SimpleNamespace(url=f"http://{host}:{port}", gateway=bench.gateway)


def impatient(kind, server):
    access = server.gateway.open(spec())
    client = kind(server.url + access.path, access.key)
    client.api = client.api.with_options(timeout=PATIENCE)
    return client


@pytest.mark.parametrize("dialect", list(CLIENTS))
def test_a_stream_outlives_a_pause_that_is_longer_than_its_client_waits(server, monkeypatch, dialect):
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 0.1)
    answer = impatient(CLIENTS[dialect], server).ask([user("Go")], tools=["bash"], stream=True)
    assert answer.text.startswith("Answer ") and answer.finish == "stop"


def test_without_it_the_client_gives_up_and_an_answer_that_is_sent_whole_waits_in_silence(server, monkeypatch):
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 60.0)
    client = impatient(CLIENTS["chat/completions"], server)
    for stream in (True, False):
        with pytest.raises(TIMED_OUT):
            client.ask([user("Go")], tools=["bash"], stream=stream)


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        ("chat/completions", {"messages": [user("Go")]}, b": keep-alive\n\n"),
        ("responses", {"input": "Go"}, b": keep-alive\n\n"),
        ("messages", {"messages": [user("Go")], "max_tokens": 5}, b'event: ping\ndata: {"type":"ping"}\n\n'),
    ],
)
def test_each_dialect_has_its_own_sign_of_life_and_none_follows_the_end(server, monkeypatch, path, body, sign):
    monkeypatch.setattr(Paused, "seconds", 0.5)
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 0.1)
    access = server.gateway.open(spec())
    url, headers = f"{server.url}{access.path}/v1/{path}", {"Authorization": f"Bearer {access.key}"}
    with httpx.stream("POST", url, json={"model": "any", "stream": True, **body}, headers=headers) as response:
        raw = b"".join(response.iter_raw())
    assert 4 <= raw.count(sign) <= 10
    assert not raw.endswith(sign) and all(event for event in raw.removesuffix(b"\n\n").split(b"\n\n"))


def test_the_server_of_a_model_keeps_its_streams_alive_too(monkeypatch):
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 0.1)
    engine = FakeEngine(lambda request: [65], seconds=SILENCE)
    with live(engine, TOKENIZER, vocab=TOKENIZER.vocab_size) as server:
        body = {"model": NAME, "prompt": "x", "max_tokens": 1, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE) as response:
            raw = b"".join(response.iter_raw())
    assert raw.count(b": keep-alive\n\n") >= 5 and raw.endswith(b"data: [DONE]\n\n")


def test_the_interval_is_well_below_what_any_agent_waits():
    assert web.KEEP_ALIVE_SECONDS <= 60 / 3
