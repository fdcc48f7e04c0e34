"""Engines on TCP answer workers that have the key of the run and speak the same wire, and nobody else."""

import asyncio
import contextlib
import socket

import numpy as np
import pytest

from k2jax.agents.collect import engine_socket, wire
from k2jax.agents.collect.engine_address import LARGEST_GREETING, EngineAddress, greeting, tcp_listener
from k2jax.agents.collect.engine_socket import EngineLostError, EngineServer, EngineSocketClient
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.agents.collect.wire import VERSION, VERSION_NUMBER, FrameConnection
from k2jax.agents.collect.wire_messages import EngineMessage, WorkerMessage, pack_request
from k2jax.agents.task import Task
from k2jax.client import Sampling, ScriptedClient
from k2jax.errors import UserError

REQUEST = pack_request(0, [1, 2], Sampling(max_tokens=3), None, ())


@contextlib.asynccontextmanager
async def served(client):
    """The address of a client that is served on TCP."""
    listener, address = tcp_listener("127.0.0.1")
    serving = asyncio.ensure_future(EngineServer(client, key=address.key).serve(listener))
    try:
        yield address
    finally:
        serving.cancel()


def scripted(asked):
    def answer(prompt, sampling):
        asked.append(prompt)
        return [5, 6, 7]

    return ScriptedClient(answer)


async def said(address, *frames):
    """What a connection receives until its end, after it has sent frames (kind, body)."""
    received, ended = [], asyncio.Event()
    connection = FrameConnection(lambda *frame: received.append(frame), ended.set)
    await asyncio.get_running_loop().create_connection(lambda: connection, address.host, address.port)
    for frame in frames:
        connection.send(*frame)
    await asyncio.wait_for(ended.wait(), 10)
    return received


def test_an_address_is_a_path_or_a_host_with_a_key_that_is_not_printed():
    for text in ("/tmp/k2jax-1/policy", "tcp://ab12@10.0.0.7:4567", "tcp://ab12@::1:80"):
        assert EngineAddress.parse(text).text == text
    printed = EngineAddress.parse("tcp://ab12@10.0.0.7:4567")
    assert str(printed) == f"{printed}" == repr(printed) == "tcp://10.0.0.7:4567"


def test_a_worker_with_the_key_is_answered_over_tcp():
    async def exchange():
        async with served(scripted([])) as address:
            client = EngineSocketClient(address.text, patience=5)
            completion = await client.generate([1, 2], Sampling(max_tokens=3))
            long = await client.generate([1] * 100_000, Sampling(max_tokens=3))  # larger than a greeting may be
            await client.close()
            return completion, long

    for completion in asyncio.run(exchange()):
        np.testing.assert_array_equal(completion.tokens, [5, 6, 7])


def test_without_the_key_nothing_is_answered_and_the_worker_says_so():
    asked = []

    async def refused():
        async with served(scripted(asked)) as address:
            other = address._replace(key=tcp_listener("127.0.0.1")[1].key)
            with pytest.raises(EngineLostError, match="does not take this worker") as error:
                await EngineSocketClient(other.text, patience=5).generate([1], Sampling(max_tokens=3))
            assert other.key not in str(error.value)
            request = (EngineMessage.REQUEST, REQUEST)
            for body in (greeting(), greeting(address.key)[:-1], greeting(address.key) + b"0", b""):
                assert await said(address, (EngineMessage.HELLO, body), request) == []
            assert await said(address, request) == []
            assert await said(address, (EngineMessage.HELLO, bytes(LARGEST_GREETING + 1))) == []

    asyncio.run(refused())
    assert not asked


@pytest.mark.parametrize("noise", [wire.lengths(0, 0), wire.lengths(0, 2) + b"ab", b"GET / HTTP/1.1\r\n", b"\xff" * 99])
def test_noise_ends_its_connection_and_is_no_error_of_the_engine(noise):
    async def closed():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with served(scripted([])) as address:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(noise)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        return errors

    assert asyncio.run(closed()) == []


def test_who_says_nothing_is_sent_away(monkeypatch):
    monkeypatch.setattr(engine_socket, "GREETING_SECONDS", 0.05)

    async def silent():
        async with served(scripted([])) as address:
            assert await said(address) == []

    asyncio.run(silent())


def test_an_engine_and_a_worker_of_different_versions_refuse_each_other(monkeypatch):
    async def old_worker():
        async with served(scripted([])) as address:
            old = VERSION_NUMBER.pack(VERSION + 1) + bytes.fromhex(address.key)
            received = await said(address, (EngineMessage.HELLO, old))
            assert received == [(EngineMessage.HELLO, greeting())], "by which it knows the engine's version"

    async def old_engine():
        async with served(scripted([])) as address:
            words = (
                f"the engine on tcp://127.0.0.1:{address.port} speaks version {VERSION} .* this process {VERSION + 1}"
            )
            monkeypatch.setattr(engine_socket, "VERSION", VERSION + 1)
            monkeypatch.setattr(wire, "VERSION", VERSION + 1)
            with pytest.raises(UserError, match=words):
                await EngineSocketClient(address.text, patience=5).generate([1], Sampling(max_tokens=3))

    asyncio.run(old_worker())
    monkeypatch.setattr(engine_socket, "VERSION", VERSION)
    asyncio.run(old_engine())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_connection_whose_engine_does_not_answer_is_closed(monkeypatch, is_cancelled):
    monkeypatch.setattr(engine_socket, "GREETING_SECONDS", 5 if is_cancelled else 0.05)

    async def ends():
        ended = asyncio.Event()

        async def mute(reader, writer):
            await reader.read()  # to the end of the connection
            ended.set()
            writer.close()

        async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
            address = EngineAddress("", *server.sockets[0].getsockname(), "ab")
            asking = asyncio.ensure_future(EngineSocketClient(address.text, patience=0.0).longest_sequence())
            await asyncio.sleep(0.2 if is_cancelled else 0)
            asking.cancel() if is_cancelled else None
            with pytest.raises(asyncio.CancelledError if is_cancelled else EngineLostError):
                await asking
            await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(ends())


class OldWorker:
    """Launches workers that say another version when they are ready."""

    pid = 0

    async def start(self, folder, shard):
        self.socket, theirs = socket.socketpair()
        theirs.sendall(wire.lengths(1, 2) + bytes([WorkerMessage.READY]) + VERSION_NUMBER.pack(VERSION + 1))
        self._theirs = theirs
        return self

    def end(self):
        self._theirs.close()


def test_the_scheduler_refuses_workers_of_another_version(tmp_path):
    write_tasks(tmp_path, [("kind", Task("a", "math", (), "exact"))])

    async def collect():
        async with RolloutManager(tmp_path, runner="none:none", options={}, workers=1, launcher=OldWorker()) as manager:
            async for _ in manager.collect(queued_samples(tmp_path, 1)):
                pass

    with pytest.raises(UserError, match=f"a worker speaks version {VERSION + 1} .* install the same k2jax"):
        asyncio.run(collect())


def test_connections_miss_a_machine_that_is_gone():
    async def options():
        async with served(scripted([])) as address:
            client = EngineSocketClient(address.text, patience=5)
            connection = await client.connect()
            sock = connection._transport.get_extra_info("socket")
            is_asked = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            unanswered = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            silent = [sock.getsockopt(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)]
            await client.close()
            return is_asked, unanswered, silent

    is_asked, unanswered, (idle, interval) = asyncio.run(options())
    assert is_asked and unanswered == 60_000 and idle + 3 * interval == 60
