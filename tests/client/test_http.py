"""The HTTP client against this project's server, and against servers that fail."""

import asyncio
import builtins
import json
import socket
import time

import numpy as np
import pytest

from k2jax.client import UNKNOWN_VERSION, HTTPClient, PromptTooLongError, Sampling
from k2jax.client.chat_endpoint import ChatEndpoint
from k2jax.errors import InfrastructureError, UserError
from k2jax.text import byte_tokenizer
from tests.agents.api.sample import NAME
from tests.serve.fakes import FakeEngine, live


def talk(url, ask, **options):
    """What ``ask(client)`` returns, a coroutine."""

    async def run():
        async with HTTPClient(url, NAME, **{"timeout": 20, "attempts": 1, "backoff": 0.01} | options) as client:
            return await ask(client)

    return asyncio.run(run())


def generate(url, prompt=(10, 11, 12), sampling=None, attempts=1, **options):
    asked = sampling or Sampling(max_tokens=4)
    return talk(url, lambda client: client.generate(prompt, asked, **options), attempts=attempts)


@pytest.fixture(scope="module")
def server():
    engine = FakeEngine(lambda request: [65, 66, 67, 68, 69], seconds=0.002)
    with live(engine, byte_tokenizer(), vocab=300) as running:
        yield running


@pytest.mark.parametrize("streamed", [False, True])
def test_token_ids_and_logprobs_come_from_the_server(server, streamed):
    seen = []
    sampling = Sampling(max_tokens=4, temperature=0.5, top_p=0.9, seed=7)
    on_token = (lambda token, logprob: seen.append((token, logprob))) if streamed else None
    completion = generate(server.url, sampling=sampling, on_token=on_token)
    assert completion.tokens.tolist() == [65, 66, 67, 68] and completion.finish == "length"
    assert completion.logprobs.tolist() == [-0.25] * 4 and set(completion.versions.tolist()) == {UNKNOWN_VERSION}
    assert seen == [(token, -0.25) for token in completion.tokens.tolist()] * streamed
    prompt, asked = server.engine.asked[-1]
    assert prompt == (10, 11, 12)
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.seed) == (4, 0.5, 0.9, 7)


def test_weights_that_do_not_change_have_the_version_that_the_caller_knows(server):
    completion = talk(server.url, lambda client: client.generate([10, 11], Sampling(max_tokens=2)), version=3)
    assert completion.versions.tolist() == [3, 3]


@pytest.mark.parametrize(("kind", "count"), [(HTTPClient, 300), (ChatEndpoint, 110)])
def test_the_caller_alone_bounds_how_many_requests_are_under_way(kind, count):
    """The server answers none of them before all are there."""
    arrived = []
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-0.5]}, "message": {}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        arrived.append(writer)
        if len(arrived) == count:
            for each in arrived:
                each.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                each.close()

    async def everything():
        async with await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count) as server, asyncio.timeout(30):
            port = server.sockets[0].getsockname()[1]
            async with kind(f"http://127.0.0.1:{port}", NAME, attempts=1) as client:
                ask = client.generate if kind is HTTPClient else client.answer
                options = {"sampling": Sampling()} if kind is HTTPClient else {"max_tokens": 1}
                return await asyncio.gather(*(ask([1], **options) for _ in range(count)))

    assert len(asyncio.run(everything())) == len(arrived) == count


def test_stop_tokens_are_those_of_the_sampling_alone(server):
    completion = generate(server.url, sampling=Sampling(max_tokens=9, stop_tokens=(67, 99)))
    assert (completion.tokens.tolist(), completion.finish) == ([65, 66, 67], "stop")
    generate(server.url)
    assert server.engine.asked[-1][1].stop_tokens == ()  # the end of a text is a token like others


def test_a_resumed_completion_is_a_longer_prompt(server):
    first = generate(server.url, sampling=Sampling(max_tokens=2))
    whole = generate(server.url, sampling=Sampling(max_tokens=4), resume=first)
    assert server.engine.asked[-1][0] == (10, 11, 12, 65, 66) and server.engine.asked[-1][1].max_tokens == 2
    assert whole.tokens.tolist()[:2] == first.tokens.tolist() and len(whole.tokens) == len(whole.logprobs) == 4


def test_given_tokens_are_scored_by_an_echoed_prompt(server):
    scores = talk(server.url, lambda client: client.score([10, 11, 12, 13], 2))
    assert scores.tolist() == [-1.5, -2.5] and scores.dtype == np.float32
    prompt, asked = server.engine.asked[-1]
    assert prompt == (10, 11, 12, 13) and asked.prompt_logprobs and asked.max_tokens == 1
    with pytest.raises(UserError, match="HTTPClient sends token ids alone, and the prompt has images"):
        talk(server.url, lambda client: client.score([10, 11], 1, media=["image"]))


def test_a_callback_ends_the_generation_and_so_does_cancelling(server):
    ended = generate(server.url, sampling=Sampling(max_tokens=200), on_token=lambda token, logprob: token == 67)
    assert (ended.tokens.tolist(), ended.finish) == ([65, 66, 67], "stop")
    with pytest.raises(TimeoutError):
        talk(server.url, lambda client: asyncio.wait_for(client.generate([10], Sampling(max_tokens=250)), 0.2))
    server.wait_until_idle()


def test_a_refused_request_is_told_in_one_line_and_not_sent_again(server):
    before = len(server.engine.asked)
    with pytest.raises(UserError, match=r"refused the request with status 400: .*outside the vocabulary") as error:
        generate(server.url, prompt=[299999], attempts=3)
    assert "\n" not in str(error.value) and len(server.engine.asked) == before
    with pytest.raises(UserError, match="return_experts"):
        generate(server.url, sampling=Sampling(return_experts=True))


def test_a_prompt_that_is_too_long_is_told_from_other_refusals(server):
    with pytest.raises(PromptTooLongError, match="longest sequence is"):
        generate(server.url, prompt=[10] * 5000)
    texts = {
        "openai": {"message": "Please reduce the length of the messages.", "code": "context_length_exceeded"},
        "vllm": {"message": "This model's maximum context length is 4096 tokens.", "code": 400},
        "other": {"message": "The model cannot be found.", "code": "model_not_found"},
    }
    for name, error in texts.items():
        raised = []
        _, asked = serve_then_generate([reply(400, {"error": error})], attempts=3, raised=raised)
        assert (asked, type(raised[0])) == (1, UserError if name == "other" else PromptTooLongError)


ANSWER = {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.5, None]}, "finish_reason": "stop"}]}


def serve_then_generate(replies, attempts=1, raised=None, **options):
    """The completion that a server of these raw HTTP replies gives, and how often it was asked.

    In the completion's place stands the message of an error, which is also appended to ``raised``.
    """
    asked, raised = [], [] if raised is None else raised

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(replies[min(len(asked), len(replies)) - 1])
        await writer.drain()
        writer.close()

    async def run():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as running:
            url = f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
            async with HTTPClient(url, NAME, attempts=attempts, backoff=0.01, timeout=20) as client:
                return await client.generate([1], Sampling(), **options)

    try:
        return asyncio.run(run()), len(asked)
    except UserError as error:
        raised.append(error)
        return str(error), len(asked)


def reply(status, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(raw)) + raw


def test_server_errors_and_broken_connections_are_tried_again():
    completion, asked = serve_then_generate([reply(503, {}), b"", reply(429, {}), reply(200, ANSWER)], attempts=4)
    assert asked == 4 and completion.tokens.tolist() == [1, 2] and completion.finish == "stop"
    assert completion.logprobs[0] == -0.5 and np.isnan(completion.logprobs[1])


def test_attempts_are_bounded():
    message, asked = serve_then_generate([reply(500, {"error": {"message": "out of\nluck"}})], attempts=3)
    assert asked == 3 and "failed 3 times, the last time with status 500: out of luck" in message
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(UserError, match="failed 2 times, the last time with ConnectError"):
        generate(url, attempts=2)
    assert time.monotonic() - began < 10


def test_a_stream_that_breaks_after_a_token_is_not_tried_again():
    chunk = {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": None}]}
    raw = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    broken = b"HTTP/1.1 200 x\r\nContent-Length: 9999\r\n\r\n" + raw
    seen = []
    message, asked = serve_then_generate([broken], attempts=3, on_token=lambda token, logprob: seen.append(token))
    assert asked == 1 and seen == [1] and "failed: RemoteProtocolError" in message


@pytest.mark.parametrize(
    ("answer", "masks", "words"),
    [
        (reply(500, {}), True, "status 500"),
        (reply(429, {}), True, "status 429"),
        (b"", True, "RemoteProtocolError"),
        (reply(200, b"<html>"), True, "not JSON"),
        (reply(200, []), True, "no object"),
        (reply(200, {"choice": 1}), True, "without choices"),
        (reply(200, {"choices": []}), True, "without a finish reason"),
        (reply(401, {"error": {"message": "no key"}}), False, "status 401: no key"),
        (reply(200, {"choices": [{"text": "a", "finish_reason": "stop"}]}), False, "without the id and log-prob"),
    ],
)
def test_a_broken_server_is_a_failure_of_machines_and_a_refusal_is_a_mistake(answer, masks, words):
    raised = []
    message, _ = serve_then_generate([answer], raised=raised)
    assert isinstance(raised[0], InfrastructureError) == masks and words in message and "\n" not in message


def test_without_httpx_the_extra_is_named(monkeypatch):
    plain = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "httpx":
            raise ModuleNotFoundError(name=name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r'httpx is not installed: pip install -e "\.\[client\]"'):
        HTTPClient("http://localhost", NAME)
