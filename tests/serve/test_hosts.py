"""A server without keys is used by those who can name it, and by no page of the web."""

import socket

import httpx
import pytest

from k2jax.serve.hosts import ServedHosts
from tests.agents.api.sample import NAME, TEXT, TOKENIZER, answer_ids
from tests.serve.fakes import FakeEngine, live

BODY = {"model": NAME, "prompt": "a", "max_tokens": 3}
CALLED = ("localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.9.9.9:80", "[::1]:8000")
FOREIGN = ("evil.example", "evil.example:8000", "localhost.evil.example", "169.254.169.254", "8.8.8.8:1", "", "a@b",
           "[", "localhost@evil.example", "127.0.0.1.nip.io", "[::ffff:8.8.8.8]", "localhost:x", "a b",
           "\x00")  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "added", "called", "foreign"),
    [
        ("127.0.0.1", (), CALLED, FOREIGN),
        ("localhost", ("proxy.internal",), (*CALLED, "proxy.internal:443", "Proxy.Internal"), FOREIGN),
        ("10.1.2.3", (), (*CALLED, "10.1.2.3:8000"), (*FOREIGN, "10.1.2.4")),
        (
            "0.0.0.0",
            ("service",),
            (*CALLED, "8.8.8.8", "service", socket.gethostname()),
            ("evil.example", "", "services"),
        ),
        ("::", (), (*CALLED, "[2001:db8::1]:80"), ("evil.example",)),
    ],
)
def test_a_server_knows_its_names(bound, added, called, foreign):
    hosts = ServedHosts(bound, added)
    for host in called:
        assert hosts.problem([(b"host", host.encode())]) == "", host
    for host in foreign:
        assert hosts.problem([(b"host", host.encode())]), host
        assert hosts.problem([(b"host", b"localhost"), (b"origin", b"http://" + host.encode())]), host
    assert hosts.problem([]) and hosts.problem([(b"host", b"localhost"), (b"host", b"evil.example")])
    assert hosts.problem([(b"host", b"localhost"), (b"origin", b"null")])
    assert not hosts.problem([(b"host", b"localhost:8000"), (b"origin", b"http://localhost:3000")])


@pytest.mark.parametrize("keys", [(), ("sk-first-0123456789",)])
def test_without_keys_alone_the_host_counts_and_health_is_everybodys(keys):
    with live(FakeEngine(lambda request: answer_ids(TEXT)), TOKENIZER, vocab=TOKENIZER.vocab_size, keys=keys) as server:
        own = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            answer = httpx.post(f"{server.url}/v1/completions", json=BODY, headers=own | headers)
            assert answer.status_code == (200 if keys else 403), answer.text
            assert keys or "--allowed_hosts" in answer.json()["error"]["message"]
            assert httpx.get(f"{server.url}/health", headers=headers).status_code == 200
        assert httpx.post(f"{server.url}/v1/completions", json=BODY, headers=own).status_code == 200
