"""Requests that two readers could take for different ones are refused, before anything is looked up or connected."""

import asyncio
import contextlib

import h11
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.egress.request import RefusedError, end_to_end, read_request
from tests.agents.egress.origins import OriginHost, ask, get, logged, named, proxied, status

GOOD = get("http://a.example/x?y=1", headers="Accept: */*\r\n")


def with_line(line):
    return GOOD[:-2] + line + b"\r\n\r\n"


def to(target, host="a.example", method="GET"):
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")


SMUGGLED = {
    "two lengths": with_line(b"Content-Length: 0\r\nContent-Length: 5"),
    "two equal lengths": with_line(b"Content-Length: 0\r\ncontent-length: 0"),
    "a list of lengths": with_line(b"Content-Length: 0, 0"),
    "a length with a sign": with_line(b"Content-Length: +0"),
    "a body": with_line(b"Content-Length: 5") + b"hello",
    "a body in chunks": with_line(b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "chunks and a length": with_line(b"Content-Length: 0\r\nTransfer-Encoding: chunked"),
    "hidden chunks": with_line(b"Transfer-Encoding: xchunked"),
    "chunks behind a tab": with_line(b"Transfer-Encoding:\tchunked"),
    "a blank before the colon": with_line(b"Content-Length : 0"),
    "a folded line": with_line(b"X: a\r\n b"),
    "a folded line of a tab": with_line(b"X: a\r\n\tTransfer-Encoding: chunked"),
    "a line without a return": with_line(b"X: a\nTransfer-Encoding: chunked"),
    "a return alone": with_line(b"X: a\rTransfer-Encoding: chunked"),
    "a null character": with_line(b"X: a\0b"),
    "no colon": with_line(b"GET http://b.example/ HTTP/1.1"),
    "another host": to("http://a.example/", "b.example"),
    "another port": to("http://a.example/", "a.example:81"),
    "two hosts": with_line(b"Host: a.example"),
    "no host": b"GET http://a.example/ HTTP/1.1\r\n\r\n",
    "a path alone": to("/x"),
    "no path at all": to("*"),
    "a user": to("http://user@a.example/"),
    "a user and a password": to("http://a.example:80@b.example/", "b.example"),
    "a fragment": to("http://a.example/#@b.example"),
    "upper case": to("http://A.example/", "A.example"),
    "a scheme in upper case": to("HTTP://a.example/"),
    "another scheme": to("https://a.example/"),
    "a file": to("file:///etc/passwd"),
    "a dot at the end": to("http://a.example./", "a.example."),
    "a name that is no ASCII": "GET http://ä.example/ HTTP/1.1\r\nHost: ä.example\r\n\r\n".encode(),
    "a backslash": to(r"http://a.example\@b.example/"),
    "a query in the place of a path": to("http://a.example?@b.example/"),
    "a zone": to("http://[fe80::1%25eth0]/", "[fe80::1%25eth0]"),
    "a decimal address": to("http://2130706433/", "2130706433"),
    "an octal address": to("http://0177.0.0.1/", "0177.0.0.1"),
    "a hexadecimal address": to("http://0x7f.1/", "0x7f.1"),
    "a short address": to("http://127.1/", "127.1"),
    "a hidden end of a line": to("http://a.example/x%0d%0aHost:%20b.example"),
    "a blank in the path": to("http://a.example/x y"),
    "an end of a line in the path": to("http://a.example/x\r\nX: y"),
    "no port": to("http://a.example:/", "a.example"),
    "a long port": to("http://a.example:65617/", "a.example:65617"),
    "another version": b"GET http://a.example/ HTTP/2.0\r\nHost: a.example\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "a tunnel without a port": to("a.example", method="CONNECT"),
    "a tunnel to a URL": to("http://a.example:80", method="CONNECT"),
    "a tunnel of another host": to("a.example:443", "b.example:443", method="CONNECT"),
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_request_that_can_be_read_in_two_ways_is_refused(name, monkeypatch):
    asked = named(monkeypatch)
    async with proxied(["a.example", "b.example", "https://a.example"]) as proxy:
        answer = await ask(proxy, SMUGGLED[name], ended=True)
    assert status(answer) == 400 and answer.count(b"HTTP/1.1 ") == 1 and asked == []
    [entry] = logged(proxy)["requests"]
    assert entry["status"] == 400 and entry["reason"] and entry["sent"] == entry["received"] == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "PROPFIND"])
def test_methods_that_change_something_are_refused(method):
    with pytest.raises(RefusedError) as refusal:
        read_request(get("http://a.example/", method))
    assert refusal.value.status == 405


def test_what_clients_send_is_read():
    read = read_request(get("http://a.example:8080/x?y=%41#"[:-1], headers="X-Own: 1\r\nProxy-Connection: close\r\n"))
    assert (read.method, tuple(read.destination), read.path) == ("GET", ("a.example", 8080, False), "/x?y=%41")
    assert read.headers == [(b"x-own", b"1")] and read.authority == "a.example:8080"
    old = read_request(b"HEAD http://a.example HTTP/1.0\r\n\r\n")
    assert (old.method, old.path, old.authority) == ("HEAD", "/", "a.example")
    assert read_request(get("http://a.example:80/", host="a.example")).destination.port == 80
    tunnel = read_request(b"CONNECT [2001:db8::1]:8443 HTTP/1.0\r\n\r\n")
    assert tuple(tunnel.destination) == ("2001:db8::1", 8443, True) and tunnel.authority == "[2001:db8::1]:8443"


def test_headers_of_a_connection_end_with_it():
    sent = [(b"connection", b"close, X-Secret"), (b"x-secret", b"1"), (b"te", b"gzip"), (b"upgrade", b"h2c"),
            (b"proxy-authorization", b"Basic x"), (b"accept", b"*/*"), (b"expect", b"100-continue")]  # fmt: skip
    assert end_to_end(sent) == [(b"accept", b"*/*")]


PIECES = [b"\r\n", b"\n", b" ", b"\t", b":", b"\0", b"@", b"#", b"\\", b"%0a", b"http://", b"", b"A", b"."]
PIECES += [b"\r\nContent-Length: 3", b"\r\nHost: b.example"]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_is_read_another_reader_reads_alike(data):
    """Bytes of a good request are changed; h11 reads what was taken as one request without a body, to its end."""
    head = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(head) - 5))
        new = data.draw(st.sampled_from(PIECES))
        head[place : place + data.draw(st.integers(0, 2))] = new
    head = bytes(head).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    try:
        read = read_request(head)
    except RefusedError:
        return
    lines = head[:-4].split(b"\r\n")
    words = lines[0].split(b" ")
    assert len(words) == 3 and words[1].startswith(b"http://") and not any(b"\n" in line for line in lines)
    authority = words[1][7:].partition(b"/")[0].decode()
    assert authority in (read.authority, f"{read.destination.host}:{read.destination.port}")
    hosts = [line.partition(b":")[2].strip() for line in lines if line.lower().startswith(b"host:")]
    assert hosts == [] or (len(hosts) == 1 and hosts[0].decode() in (read.authority, authority))
    assert not any(line.lower().startswith((b"content-length: 3", b"transfer")) for line in lines)


async def test_what_follows_a_request_is_no_second_one(monkeypatch):
    named(monkeypatch, a_example=["127.0.0.1"])
    async with OriginHost().at() as origin:
        allowed = [f"a.example:{origin.port}", f"127.0.0.1:{origin.port}"]
        async with proxied(allowed) as proxy:
            request = get(f"http://a.example:{origin.port}/one")
            answer = await ask(proxy, request + request.replace(b"one", b"two"))
    assert answer.count(b"HTTP/1.1 ") == 1 and b"\r\nconnection: close\r\n" in answer.lower()
    [asked] = origin.asked
    assert asked.startswith(b"GET /one HTTP/1.1\r\n") and asked.lower().count(b"host:") == 1
    assert h11.Connection(h11.SERVER).receive_data(asked) is None


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nhello", 502),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n\r\n", 200),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nanything", 502),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.1 200 OK\r\nConnection: X-Own\r\nX-Own: 1\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", 200),
        (b"SSH-2.0-OpenSSH\r\n", 502),
        (b"", 502),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 130 + b"\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 502),
    ],
)
async def test_an_answer_is_passed_on_as_one_answer_or_not_at_all(answer, seen):
    async with OriginHost(answer).at() as origin, proxied([f"127.0.0.1:{origin.port}"]) as proxy:
        got = await ask(proxy, f"http://127.0.0.1:{origin.port}/")
    assert status(got) == seen and got.count(b"HTTP/1.1 ") == 1 and b"X-Own" not in got and b"x-own" not in got


async def test_an_answer_that_is_cut_off_ends_so():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"
    async with OriginHost(answer).at() as origin, proxied([f"127.0.0.1:{origin.port}"]) as proxy:
        got = await ask(proxy, f"http://127.0.0.1:{origin.port}/")
    assert b"\r\ncontent-length: 9\r\n" in got.lower() and got.endswith(b"\r\n\r\nhello")
    assert "cannot be read" in logged(proxy)["requests"][0]["reason"]


async def test_chunks_and_what_has_no_length_arrive_whole():
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nyou\r\n0\r\nTrailer: 1\r\n\r\n"
    for answer, end in ((body, b"hello"), (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello")):
        async with OriginHost(answer).at() as origin, proxied([f"127.0.0.1:{origin.port}"]) as proxy:
            got = await ask(proxy, f"http://127.0.0.1:{origin.port}/")
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
        client.send(h11.EndOfMessage())
        client.receive_data(got)
        events = []
        with contextlib.suppress(h11.RemoteProtocolError):
            while not events or not isinstance(events[-1], h11.EndOfMessage):
                events.append(client.next_event())
        said = b"".join(event.data for event in events if isinstance(event, h11.Data))
        assert said.startswith(end) and isinstance(events[-1], h11.EndOfMessage) and b"Trailer" not in got


async def test_headers_that_are_long_or_late_are_refused():
    async with proxied(["a.example"], header_bytes=1000, header_seconds=0.1) as proxy:
        long = await ask(proxy, get("http://a.example/", headers=f"X: {'y' * 1000}\r\n"))
        late = await ask(proxy, b"GET http://a.example/ HTTP/1.1\r\n")
        many = await ask(proxy, get("http://a.example/", headers="X: y\r\n" * 130))
        _, writer = await asyncio.open_unix_connection(str(proxy.folder / proxy.socket))
        writer.close()
        await asyncio.sleep(0.02)
    assert [status(answer) for answer in (long, late, many)] == [431, 408, 431]
    assert [entry["status"] for entry in logged(proxy)["requests"]] == [431, 408, 431]
