"""Requests that the server rejects: always in OpenAI's error format, never with an unexpected 5xx."""

from concurrent.futures import ThreadPoolExecutor
import json
import logging
import socket
import time

import openai
import pytest

from k2jax.client.keys import ApiKeys, check_exposure, read_keys
from k2jax.errors import UserError
from k2jax.text import byte_tokenizer
from tests.agents.api.sample import NAME, TOKENIZER, USER
from tests.serve.fakes import FakeEngine, live

KEYS = ("sk-first-0123456789", "sk-second-0123456789")


def forever(request):
    return [2 + ord("a")]


@pytest.fixture
def slow():
    """Two slots, two places in the queue, and answers that take their time."""
    with live(
        FakeEngine(forever, slots=2, seconds=0.02), byte_tokenizer(), vocab=258, max_queue=2, max_length=4096
    ) as running:
        yield running


def post_raw(server, content, path="completions"):
    return server.http.post(f"/v1/{path}", content=content, headers={"Content-Type": "application/json"})


def check_error(response, status, param=..., code=...):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(response.json()) == {"error"} and set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"] and error["type"]
    assert param in (..., error["param"]) and code in (..., error["code"]), error


def test_what_is_no_request_is_refused_in_openais_format(server):
    for path in ("completions", "chat/completions"):
        for body in (b"", b"[" * 50000, b"[]", b'{"model": "tiny", "prompt": 5, "messages": 5}'):
            check_error(post_raw(server, body, path), 400)
    body = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 1}).encode()
    for headers in ({}, {"Content-Type": "text/plain"}):
        check_error(server.http.post("/v1/completions", content=body, headers=headers), 415)
    for content in (b" " * ((1 << 16) + 1), b" " * (20 << 20), (b" " * 4096 for _ in range(100))):
        check_error(post_raw(server, content), 413, None, "request_too_large")
    assert post_raw(server, body.ljust(1 << 16)).status_code == 200
    check_error(server.post("completions", prompt="a", model="gpt-4"), 404, "model", "model_not_found")
    check_error(server.http.get("/v1/models/gpt-4"), 404, "model")
    check_error(server.http.post("/v1/completions", json={"prompt": "a"}), 400, "model", "missing_parameter")
    for path in ("/", "/v1", "/v1/embeddings", "/v1/completions/x", "/docs", "/%00", "/v1/models/%ff"):
        check_error(server.http.get(path), 404)
    check_error(server.http.get("/v1/completions"), 405)
    check_error(server.http.post("/v1/models"), 405)


def test_a_model_without_chat_format_says_so(slow):
    check_error(slow.post("chat/completions", messages=USER), 400, "model", "unsupported")


WRONG_KEYS = [
    "", "Bearer", KEYS[0], f"Basic {KEYS[0]}", f"Bearer {KEYS[0][:-1]}", f"Bearer {KEYS[0]}x", b"Bearer \xe9",
]  # fmt: skip


def test_keys():
    with live(FakeEngine(forever), TOKENIZER, vocab=TOKENIZER.vocab_size, keys=KEYS) as server:
        for key in KEYS:
            assert server.openai(key).completions.create(model=NAME, prompt="a", max_tokens=1).choices
        for headers in ({}, {"api-key": KEYS[0]}, *({"Authorization": value} for value in WRONG_KEYS)):
            for path in ("/v1/models", "/metrics", "/v1/nothing"):
                check_error(server.http.get(path, headers=headers), 401, None, "invalid_api_key")
            # Refused before the body is looked at.
            check_error(server.http.post("/v1/completions", content=b"{", headers=headers), 401)
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/metrics", headers={"Authorization": f"bearer  {KEYS[1]}"}).status_code == 200


def test_where_keys_come_from(tmp_path, monkeypatch):
    monkeypatch.delenv("K2JAX_API_KEYS", raising=False)
    assert not read_keys(None)
    file, empty = tmp_path / "keys", tmp_path / "empty"
    file.write_text("one\n\n  two \n")
    empty.write_text("\n \n")
    for path, message in ((empty, "contains no API key"), (tmp_path / "none", "cannot read")):
        with pytest.raises(UserError, match=message):
            read_keys(str(path))
    monkeypatch.setenv("K2JAX_API_KEYS", "three,four five")
    keys = read_keys(str(file))
    assert all(keys.accept(key.encode()) for key in ("one", "two", "three", "four", "five"))
    assert not any(keys.accept(key.encode()) for key in ("", "six", "one two"))
    monkeypatch.setenv("K2JAX_API_KEYS", " ")
    with pytest.raises(UserError, match="contains no API key"):
        read_keys(None)


def test_only_loopback_is_served_without_keys():
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        check_exposure(host, ApiKeys(), False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "", "example.com"):
        with pytest.raises(UserError, match="allow_unauthenticated"):
            check_exposure(host, ApiKeys(), False)
        check_exposure(host, ApiKeys(), True)
        check_exposure(host, ApiKeys(["key"]), False)


def test_a_full_queue_sends_clients_away(slow):
    client = slow.openai()
    streams = [client.completions.create(model=NAME, prompt="a", max_tokens=4000, stream=True) for _ in range(4)]
    for stream in streams[:2]:
        next(iter(stream))
    response = slow.post("completions", prompt="a", max_tokens=1)
    check_error(response, 429, None, "queue_full")
    assert int(response.headers["retry-after"]) >= 1
    check_error(slow.post("completions", prompt="a", n=5), 400, "n")  # it would never fit
    for stream in streams:
        stream.close()
    slow.wait_until_idle()
    assert slow.post("completions", prompt="a", max_tokens=1, n=4).status_code == 200


def test_a_client_that_leaves_frees_its_slots(slow):
    """Streaming or not, in a slot or in the queue."""
    address = slow.url.removeprefix("http://").split(":")
    for stream in (True, False):
        before = slow.metrics()["k2jax_disconnects_total"]
        body = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 4000, "n": 4, "stream": stream}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((address[0], int(address[1]))) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head.encode() + body)
            until = time.monotonic() + 5
            while (counters := slow.metrics())["k2jax_running"] < 2 and time.monotonic() < until:
                time.sleep(0.02)
            assert (counters["k2jax_running"], counters["k2jax_waiting"]) == (2, 2)
        assert slow.wait_until_idle(3)["k2jax_disconnects_total"] == before + 1


def test_a_server_that_is_about_to_end(server):
    server.service.closing = True
    check_error(server.post("completions", prompt="a"), 503, None, "service_unavailable")
    check_error(server.http.get("/health"), 503)
    server.service.closing = False
    assert server.http.get("/health").status_code == 200


def test_an_engine_that_fails(caplog):
    with live(FakeEngine(forever, seconds=0.02), TOKENIZER, vocab=TOKENIZER.vocab_size, max_length=4096) as server:
        stream = server.openai().completions.create(model=NAME, prompt="a", max_tokens=4000, stream=True)
        pieces = iter(stream)
        next(pieces)
        with ThreadPoolExecutor(1) as beside:
            whole = beside.submit(server.post, "completions", prompt="a", max_tokens=4000)
            while server.metrics()["k2jax_running"] < 2:
                time.sleep(0.01)
            server.engine.broken = RuntimeError("the accelerator is gone")
            with pytest.raises(openai.APIError, match="engine has failed"):
                list(pieces)
        check_error(whole.result(), 503)
        check_error(server.post("completions", prompt="a"), 503, None, "service_unavailable")
        check_error(server.http.get("/health"), 503)
        assert server.http.get("/metrics").status_code == 200
    logged = [record for record in caplog.records if record.name == "k2jax.serve"]
    assert [record.levelno for record in logged] == [logging.ERROR] and "accelerator is gone" in caplog.text


def test_tokens_that_cannot_be_decoded_fail_their_own_request_only(server, monkeypatch):
    monkeypatch.setattr("k2jax.agents.api.detokenize.StopStrings.feed", lambda self, text: 1 / 0)
    check_error(server.post("completions", prompt="a", max_tokens=2), 500)
    monkeypatch.undo()
    assert server.post("completions", prompt="a", max_tokens=2).status_code == 200
    server.wait_until_idle()
