"""Connections to a server: their time, their number, and bodies that arrive slowly or without a length."""

import asyncio
import contextlib
import socket
import time
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.web import arrivals
from k2jax.agents.web.arrivals import SHORT_BODY, Arrivals, SharedRoom
from k2jax.agents.web.http import json_response
from k2jax.agents.web.protocol import ConnectionLimits
from tests.http_server import served

SECONDS = 0.3
BODY = b'{"a": 1}'


@contextlib.contextmanager
def serving(app, loop="auto", **limits):
    """An application on a free port, with limits of its connections."""
    with served(app, ConnectionLimits(header_seconds=SECONDS, **limits), force=True, loop=loop) as address:
        yield lambda: socket.create_connection(address, timeout=5)


def answer(arriving=None):
    """An application that answers at once, or after the body has arrived."""

    async def app(scope, receive, send):
        status = 200
        if arriving is not None:
            try:
                async with arriving.of(Request(scope, receive), "sender") as arrival:
                    assert await arrival.parse(lambda value: value) == {"a": 1}
            except ApiError as error:
                status = error.status
        await json_response({}, status)(scope, receive, send)

    return app


def head(*lines, length=None):
    length = [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join(["POST / HTTP/1.1", "Content-Type: application/json", *lines, *length, "", ""]).encode()


def all_of(connection):
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            data += more
    return data


@pytest.mark.parametrize("sent", [b"", b"POST / HT", head()[:-2] + b"A: b", head(length=8) + b"{}"])
def test_what_is_sent_by_halves_ends_in_time(sent):
    with serving(answer()) as connect, connect() as connection:
        connection.sendall(sent)
        begun, data = time.monotonic(), b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                data += more
                connection.sendall(b" ")  # a byte now and then does not help
        assert time.monotonic() - begun < SECONDS + 2
        assert data.startswith(b"HTTP/1.1 200" if b"Length" in sent else b"HTTP/1.1 408") or not sent


def test_a_second_request_on_a_connection_has_its_own_time_and_its_own_limit():
    with serving(answer()) as connect, connect() as connection:
        for _ in range(5):
            connection.sendall(head(*(f"h{i}: {'b' * 900}" for i in range(30)), length=0))
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(SECONDS / 3)
        connection.sendall(head(*(f"h{i}: {'b' * 900}" for i in range(40)), length=0))
        assert all_of(connection).startswith(b"HTTP/1.1 431")
    for lines in (["a: b"] * 200, ["a: " + "b" * 33_000]):
        with serving(answer()) as connect, connect() as connection:
            connection.sendall(head(*lines, length=0))
            assert all_of(connection).startswith(b"HTTP/1.1 431")


def test_connections_beyond_the_limit_are_closed_and_those_within_go_on():
    with serving(answer(), connections=3) as connect, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect()) for _ in range(3)]
        with connect() as further:
            assert all_of(further) == b""
        for connection in held:
            connection.sendall(head(length=0))
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        held[0].close()
        time.sleep(0.05)
        with connect() as again:
            again.sendall(head(length=0))
            assert again.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_a_client_that_does_not_read_is_cut_and_a_slow_one_is_not(loop):
    ended = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            for _ in range(400):
                await send({"type": "http.response.body", "body": b"a" * 100_000, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            disconnected = asyncio.create_task(receive())
            ended.append((await disconnected)["type"])

    with serving(app, loop=loop, reading_seconds=SECONDS) as connect, connect() as still, connect() as slow:
        for connection in (still, slow):
            connection.sendall(head(length=0))
        begun, taken = time.monotonic(), 0
        while time.monotonic() - begun < 4 * SECONDS:
            time.sleep(SECONDS / 10)
            taken += len(slow.recv(1 << 18, socket.MSG_WAITALL))
        assert ended == ["http.disconnect"]  # of the one that does not read
        while more := slow.recv(1 << 20):
            taken += len(more)
            if more.endswith(b"\r\n0\r\n\r\n"):
                break
        assert taken > 40_000_000


def chunked(data, size):
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head(length=len(BODY)) + BODY, 200),
        (head("Transfer-Encoding: chunked") + chunked(BODY, 3), 200),
        (head("Transfer-Encoding: chunked") + chunked(b" " * 5000 + BODY, 500), 413),
        (head(length=5000) + BODY, 413),
        (head(length="9" * 18) + BODY, 413),
        (head(length=len(BODY)).replace(b"json", b"text") + BODY, 415),
        (head(length=20) + BODY, 408),
    ],
)
def test_bodies_of_every_kind_of_length(sent, status, monkeypatch):
    monkeypatch.setattr(arrivals, "BODY_SECONDS", 0.2)
    with serving(answer(Arrivals(4096))) as connect, connect() as connection:
        connection.sendall(sent)
        assert connection.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode())


def test_room_is_shared_and_given_back(monkeypatch):
    monkeypatch.setattr(arrivals, "ROOM_SECONDS", 0.1)

    async def run():
        room = SharedRoom(10, 6)
        await room.take("a", 6)
        for owner, size in (("a", 1), ("b", 5), ("c", 11)):
            with pytest.raises(ApiError, match="try again") as refused:
                await room.take(owner, size)
            assert refused.value.status == 429
        waiting = asyncio.create_task(room.take("b", 6))
        await asyncio.sleep(0)
        await room.give("a", 6)
        await waiting
        await room.give("b", 6)
        await room.take("a", 6)
        assert room._held == {"a": 6}

    asyncio.run(run())


def test_long_bodies_do_not_hold_up_short_ones_and_a_failure_gives_back_its_room():
    def body(size, data=None):
        async def stream():
            if data is None:
                await asyncio.Event().wait()
            yield data

        headers = {"content-type": "application/json", "content-length": str(size)}
        return SimpleNamespace(headers=headers, stream=stream)

    async def run():
        arriving = Arrivals(4 * SHORT_BODY)

        async def read(request, sender):
            async with arriving.of(request, sender) as arrival:
                return await arrival.parse(lambda value: value)

        slow = asyncio.create_task(read(body(4 * SHORT_BODY), "hostile"))
        await asyncio.sleep(0.01)
        waits = asyncio.create_task(read(body(2 * SHORT_BODY, b"1"), "other"))
        assert await read(body(1, b"1"), "other") == await read(body(1, b"2"), "hostile") - 1 == 1
        for data in (b"", b"{", b"11"):
            with pytest.raises(ApiError):
                await read(body(1, data), "other")
        assert not waits.done()
        slow.cancel()
        assert await waits == 1
        assert not arriving._requests and not arriving._long._held and not arriving._short._held

    asyncio.run(run())
