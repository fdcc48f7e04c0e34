"""What other processes send is parsed within bounds, wherever code that nobody trusts may have written it."""

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from unittest import mock

import pytest

from k2jax.agents.sandbox.e2b import _events
from k2jax.agents.sandbox.python_worker import _Channel
from k2jax.agents.toolsets.mcp_transport import MOST_VALUES, _read
from k2jax.agents.toolsets.store import LARGEST, StoreTools
from k2jax.agents.toolsets.types import ToolError
from k2jax.agents.verifier_pool import verifier_messages as frames
from k2jax.errors import UserError
from k2jax.files.frames import lengths
from k2jax.processes import rendezvous
from k2jax.tasks.code.verifier import verdict_of

DEEP = b"[" * 100_000
WIDE = b"[" + b"[]," * 600_000 + b"[]]"


def sent(data):
    """A socket at which data arrive, and then their end."""
    ours, theirs = socket.socketpair()

    def send():
        with theirs, contextlib.suppress(OSError):
            theirs.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    return ours


GREETING = {"process": 1, "host": "x", "count": 2, "version": rendezvous.VERSION}


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"7\n", b"[]\n", DEEP + b"\n", WIDE + b"\n", b"x" * (8 << 20), b"\xff\n",
     json.dumps(GREETING).encode()]
    + [json.dumps(GREETING | {key: value}).encode() + b"\n" for key, value in (
        ("process", []), ("process", {}), ("process", 0), ("process", -1), ("process", 2), ("process", 1e999),
        ("process", None), ("count", []), ("count", "two"))],
)  # fmt: skip
def test_what_is_no_greeting_changes_nothing_at_the_rendezvous(data):
    arrived = {}
    with sent(data) as connection:
        assert rendezvous._admit(connection, 2, arrived) is None
    assert not arrived


def test_greetings_count_and_others_take_no_longer_than_they_may(monkeypatch):
    monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 0.3)
    arrived = {}
    with sent(json.dumps(GREETING).encode() + b"\n") as connection:
        assert rendezvous._admit(connection, 2, arrived) is None and list(arrived) == [1]
    with sent(json.dumps(GREETING | {"count": 3, "host": "\x1b[2J" * 99}).encode() + b"\n") as connection:
        mistake = rendezvous._admit(connection, 2, {})
        assert "has JAX_NUM_PROCESSES 3" in mistake and mistake.isprintable() and len(mistake) < 300
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip():
        while not stop.wait(0.05):
            theirs.send(b" ")

    threading.Thread(target=drip, daemon=True).start()
    began = time.monotonic()
    with ours, theirs:
        assert rendezvous._admit(ours, 2, {}) is None
        stop.set()
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("version", [None, 0, "1"])
def test_processes_of_another_version_are_told_apart_at_both_ends(version):
    with sent(json.dumps(GREETING | {"version": version}).encode() + b"\n") as connection:
        assert "install the same k2jax" in rendezvous._admit(connection, 2, {})
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as peer:
                peer.recv(1000)
                peer.sendall(json.dumps({"mistake": None, "version": version}).encode() + b"\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UserError, match=r"process 0 speaks version .* this process 1; install the same k2jax"):
            rendezvous.rendezvous(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, 5)


@pytest.mark.parametrize("record", [b"7", b"[]", b"{", b"NaN", b"\xff", DEEP, WIDE])
def test_a_verifier_s_process_says_objects_of_few_values_or_nothing(record):
    with sent(lengths(len(record), 0) + record) as connection, pytest.raises(frames.FrameError):
        frames.receive(connection)


@pytest.mark.parametrize("line", [b"7", b"[]", b"{}", DEEP, b'{"secret": 7}', b'{"secret": "\\ud800"}'])
def test_a_program_under_test_prints_no_verdict_by_itself(line):
    assert verdict_of(b"output\n" + line, "secret") is None


MANY = b'{"answer": {"value": ' + WIDE[:999_999] + b"[]]}}"


@pytest.mark.parametrize("answer", [b"7", b"{}", b'{"answer": 7}', DEEP, MANY])
def test_a_tool_worker_s_answer_has_few_values_or_ends_it(answer):
    async def exchange():
        channel = _Channel()
        channel._transport = mock.Mock()
        asking = asyncio.create_task(channel.exchange({"run": "x", "limit": 0}, 5.0))
        await asyncio.sleep(0)
        channel.data_received(struct.pack("!II", len(answer), 0) + answer)
        return await asking

    with pytest.raises(ValueError, match=r"none|deep|values"):
        asyncio.run(exchange())


@pytest.mark.parametrize("record", [b"7", b"[]", DEEP, WIDE, b'{"error": 7}'])
def test_a_machine_s_events_are_objects_of_few_values(record):
    class Response:
        async def aiter_bytes(self):
            yield struct.pack(">BI", 2 if b"error" in record else 0, len(record)) + record

    async def read():
        return [event async for event in _events(Response())]

    with pytest.raises((ValueError, TypeError, AttributeError)):  # what the caller takes for a failure of the machine
        asyncio.run(read())


def test_a_message_of_too_many_values_from_a_tool_server_in_a_sandbox_is_none():
    received = []

    class Into(contextlib.AsyncExitStack):
        async def send(self, message):
            received.append(message)

    async def read():
        reader = asyncio.StreamReader(limit=1 << 22)
        reader.feed_data(b'{"jsonrpc": "2.0", "id": 1, "result": {"x": [' + b"[]," * MOST_VALUES + b"[]]}}\n")
        reader.feed_eof()
        await _read(reader, Into())

    asyncio.run(read())
    assert len(received) == 1 and isinstance(received[0], ValueError) and "values" in str(received[0])


def test_a_store_is_not_filled_without_end():
    tools = StoreTools()
    tools.set("a", "x" * (LARGEST // 2))
    for value in ("y" * LARGEST, "y" * (LARGEST // 2)):
        with pytest.raises(ToolError, match="holds no more than"):
            tools.set("b", value)
    assert tools.set("a", "y" * (LARGEST // 2)) == "ok" and list(tools.contents) == ["a"]
