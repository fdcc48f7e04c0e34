"""Tunnels: of hosts alone that the user allows so, with TLS inside that names the host."""

import asyncio
import ssl

import pytest

from k2jax.agents.egress.request import RefusedError
from k2jax.agents.egress.tunnel import server_name
from tests.agents.egress.origins import OriginHost, ask, logged, named, proxied, status


def hello(name):
    """The first message of TLS to a host, or to one that is not named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def connect(host, port, first=b""):
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() + first


async def backwards(reader, writer):
    """Sends what has come when its end has, in the other order."""
    data = await reader.read()
    writer.write(data[::-1])
    await writer.drain()


async def test_a_tunnel_passes_bytes_both_ways_and_is_logged_with_them(monkeypatch):
    named(monkeypatch, a_example=["127.0.0.1"])
    async with OriginHost(backwards).at() as there:
        listed = [f"https://a.example:{there.port}", f"https://127.0.0.1:{there.port}"]
        sent = hello("a.example") + bytes(range(256)) * 1000
        async with proxied(listed) as proxy:
            answer = await ask(proxy, connect("a.example", there.port, sent), ended=True)
            plain = await ask(proxy, f"http://a.example:{there.port}/")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(head) == 200 and body == sent[::-1] and status(plain) == 403 and len(there.asked) == 1
    tunnel, _ = logged(proxy)["requests"]
    assert (tunnel["method"], tunnel["host"], tunnel["path"], tunnel["reason"]) == ("CONNECT", "a.example", "", "")
    assert tunnel["sent"] == tunnel["received"] == len(sent) and tunnel["seconds"] > 0


async def test_hosts_that_are_allowed_for_requests_have_no_tunnel(monkeypatch):
    asked = named(monkeypatch, a_example=["127.0.0.1"])
    async with OriginHost().at() as there, proxied([f"a.example:{there.port}", f"127.0.0.1:{there.port}"]) as proxy:
        for host in ("a.example", "127.0.0.1", "b.example"):
            assert status(await ask(proxy, connect(host, there.port, hello(host)))) == 403
    assert there.asked == asked == [] and "through a tunnel" in logged(proxy)["requests"][0]["reason"]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (hello("b.example"), "for 'b.example'"),
        (hello(None), "for ''"),
        (b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "no TLS"),
        (b"SSH-2.0-client\r\n", "no TLS"),
        (hello("a.example")[:100], "no TLS"),
        (b"", "no TLS"),
    ],
    ids=["another name", "no name", "HTTP", "SSH", "half a message", "nothing"],  # a message is random
)
async def test_what_is_no_tls_with_the_host_is_not_passed_on(first, reason, monkeypatch):
    named(monkeypatch, a_example=["127.0.0.1"])
    async with OriginHost(backwards).at() as there:
        listed = [f"https://a.example:{there.port}", f"https://127.0.0.1:{there.port}"]
        async with proxied(listed) as proxy:
            answer = await ask(proxy, connect("a.example", there.port, first), ended=True)
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
    [entry] = logged(proxy)["requests"]
    assert reason in entry["reason"] and entry["sent"] == 0


def test_the_name_of_a_server_is_read_from_any_part_that_has_it():
    message = hello("a.example")
    assert server_name(message) == server_name(message + b"more") == (True, "a.example")
    assert server_name(hello("127.0.0.1")) == (True, "")
    assert {server_name(message[:size])[0] for size in range(0, len(message) - 1, 40)} == {False}
    with pytest.raises(RefusedError):
        server_name(b"x" * 100)


async def test_a_tunnel_to_an_address_needs_no_name_and_ends_in_time():
    async def silent(reader, writer):
        await reader.read()
        await asyncio.sleep(10)

    async with OriginHost(silent).at() as there, proxied([f"https://127.0.0.1:{there.port}"], seconds=0.2) as proxy:
        answer = await ask(proxy, connect("127.0.0.1", there.port, hello("127.0.0.1")))
    assert status(answer) == 200
    [entry] = logged(proxy)["requests"]
    assert entry["reason"] == "it takes too long" and entry["sent"] == len(hello("127.0.0.1"))
