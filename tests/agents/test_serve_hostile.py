"""Whoever connects to a server of environments: nothing without the key, what is offered with it, always in bounds."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
from pathlib import Path
import shlex
import subprocess
import sys
import time

import aiohttp
import pytest

from k2jax.agents import Observation, Step
from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import Environment, EnvironmentMaker
from k2jax.agents.environments import serve_connections
from k2jax.agents.environments.remote import RemoteEnvironment, remote
from k2jax.agents.environments.remote_messages import PROTOCOL, memory_of
from k2jax.agents.environments.remote_servers import VARIABLE
from k2jax.agents.environments.serve import EnvironmentServer
from k2jax.agents.environments.serve_offer import Offer
from k2jax.agents.registry import environments
from k2jax.agents.scaffolds.scripted import called_all
from k2jax.agents.task import Task
from k2jax.errors import UserError
from tests.agents.remote_server import BEARER, KEY, served, until
from tests.memory import run_measured

MEBI = 1 << 20
SLOW_ATTACKS = ("lists", "inner_lists", "stalled", "held", "unread")
ATTACKS = Path(__file__).with_name("serve_attacks.py")


class Slow(Environment):
    """An environment that waits as long as an action says, or says as much."""

    open = 0

    async def reset(self, task, seed):
        type(self).open += 1
        return Observation(task.instruction)

    async def step(self, action):
        await asyncio.sleep(float(action.get("seconds", 0)))
        return Step(Observation(({"role": "user", "content": "x" * int(action.get("characters", 1))},)))

    async def close(self):
        type(self).open -= 1


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setitem(environments.added, "slow", "tests.agents.test_serve_hostile:Slow")
    monkeypatch.setattr(Slow, "open", 0)
    return Offer(("slow",))


def a_task(**fields):
    (task,) = load_tasks("tool_use", ("count=1", "kinds=calc1"))
    return dataclasses.replace(task, **fields)


def reset_of(task, **fields):
    return json.dumps({"method": "reset", "task": task.to_json(), "seed": 0} | fields)


def step_of(**action):
    return json.dumps({"method": "step", "action": {"role": "assistant", "content": "", **action}})


@contextlib.asynccontextmanager
async def conversation(offer=None, **options):
    """A WebSocket with the key, and the server."""
    async with (
        served(offer, **options) as (url, server),
        aiohttp.ClientSession() as session,
        session.ws_connect(url, headers=BEARER, protocols=(PROTOCOL,)) as socket,
    ):
        yield socket, server


async def ask(socket, text):
    await socket.send_str(text)
    return json.loads((await socket.receive(timeout=20)).data)


def strangers(key):
    """Headers of clients without a server's key, and the status of their answer."""
    wrong = ("Bearer ", f"Bearer {key}x", key, f"Basic {key}")
    others = ((None, 401), ("Cookie", 401), ("Origin", 403))
    headers = {None: {}, "Cookie": {"Cookie": f"key={key}"}}
    headers["Origin"] = {"Origin": "https://example.org", "Authorization": f"Bearer {key}"}
    return [*(({"Authorization": value}, 401) for value in wrong), *((headers[name], code) for name, code in others)]


async def test_without_the_key_nobody_has_a_session_not_even_on_this_machine_and_no_web_page_has_one():
    async with served() as (url, server), aiohttp.ClientSession() as session:
        for (headers, status), query in itertools.product(strangers(KEY), ("", f"?key={KEY}")):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(url + "/" + query, headers=headers)
            assert refused.value.status == status and server.sessions == 0, headers
    with pytest.raises(ValueError, match="needs a key"):
        EnvironmentServer(EnvironmentMaker(), "")


@pytest.mark.parametrize("spoken", [(), ("k2jax.environment.0",)])
async def test_a_client_of_another_version_is_told_to_install_the_same(spoken):
    async with served() as (url, server), aiohttp.ClientSession() as session:
        answer = await session.get(
            url,
            headers=BEARER
            | {"Connection": "Upgrade", "Upgrade": "websocket"}
            | ({"Sec-WebSocket-Protocol": spoken[0]} if spoken else {}),
        )
        assert answer.status == 426 and (await answer.text()).endswith("install the same k2jax at both ends")
        assert server.sessions == 0


def test_the_command_keeps_a_key_and_prints_what_a_client_has_to_set_without_it(tmp_path, monkeypatch):
    folder = tmp_path / "a folder"
    command = [sys.executable, "-m", "k2jax.env.serve", "--port=0", f"--workdir={folder}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed = process.stdout.readline() + process.stdout.readline()
        file = folder / "environments.key"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() not in printed + Path(f"/proc/{process.pid}/cmdline").read_text()
        (setting,) = (word for word in shlex.split(printed) if word.startswith(VARIABLE))
        monkeypatch.setenv(*setting.split("=", 1))
        url = printed.split()[2]
        assert shlex.split(os.environ[VARIABLE]) == [f"{url}={file}"]
        observation = asyncio.run(_begun(RemoteEnvironment(), remote(a_task(), url)))
        assert observation.messages
    finally:
        process.kill()
        process.communicate()


async def _begun(environment, task):
    try:
        return await environment.reset(task, 0)
    finally:
        await environment.close()


INTERPRETER = {"classes": ["code:InteractiveInterpreter"], "configuration": {}, "tools": []}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": ("search corpus=/etc/passwd",)},
        {"tools": ("mcp url=http://169.254.169.254/mcp",)},
        {"tools": ("mcp command='cat' read_only=/opt",)},
        {"tools": ("python packages=k2jax",)},
        {"tools": ("tau2",), "metadata": {"desk": {"domain": "mock", "folder": "/etc", "initial": {}}}},
        {"tools": ("simulated_apis",), "metadata": {"apis": INTERPRETER}},
        {"tools": ("delegate",)},
        {
            "environment": "remote",
            "metadata": {"remote": {"url": "ws://127.0.0.1:1", "environment": "x", "timeout": 1}},
        },
        {"environment": "repository", "metadata": {"repository": "/", "base": "HEAD"}},
        {"environment": "verifiers", "metadata": {"verifiers": {"environment": "os", "arguments": "{}", "input": {}}}},
        {"environment": "no_such"},
        {"tools": ("",)},
        {"tools": ("shell 'x",)},
    ],
)
def test_a_task_names_nothing_that_reaches_the_machine_unless_the_operator_does(fields):
    with pytest.raises(UserError, match=r"does not offer|there is no|names no"):
        Offer().check(a_task(**{"tools": (), "environment": "tools"} | fields))


def test_what_the_operator_names_is_offered_with_these_options_alone():
    environments_ = (
        "repository",
        "verifiers environment=gsm8k",
        """verifiers environment=x 'arguments={"level": 2}'""",
    )
    offer = Offer(environments_, ("search corpus='my docs.jsonl' results=3", "tau2", "tau2 folder=/data/desk"))
    desk = {"domain": "mock", "folder": "/data/desk", "initial": {}}
    package = {"environment": "x", "arguments": '{"level": 2}', "input": {}}
    for fields in (
        {"environment": "repository"},
        {"environment": "verifiers", "metadata": {"verifiers": {"environment": "gsm8k", "arguments": "{}"}}},
        {"environment": "verifiers", "metadata": {"verifiers": package}},
        {"tools": ('search "corpus=my docs.jsonl" results=3', "python timeout=9", "shell", "edit")},
        {"tools": ("tau2",), "metadata": {"desk": desk}},
        {"tools": ("tau2",), "metadata": {"desk": desk | {"folder": ""}}},
    ):
        offer.check(a_task(**fields))
    for fields in (
        {"environment": "verifiers", "metadata": {"verifiers": package | {"arguments": '{"level": 3}'}}},
        {"environment": "verifiers", "metadata": {"verifiers": [["environment", "gsm8k"]]}},
        {"tools": ("search corpus='my docs.jsonl' results=4",)},
        {"tools": ("search corpus='my docs.jsonl'",)},
        {"tools": ("tau2",), "metadata": {"desk": desk | {"folder": "/data"}}},
    ):
        with pytest.raises(UserError, match="does not offer"):
            offer.check(a_task(**fields))
    with pytest.raises(UserError, match="no toolset 'serch'"):
        Offer((), ("serch corpus=x",))


async def test_what_is_not_offered_is_a_mistake_of_the_client_and_its_session_goes_on(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps({"address": "a", "title": "t", "text": "SECRET"}))

    async with conversation() as (socket, _):
        refused = await ask(socket, reset_of(a_task(tools=(f"search corpus={secret}",))))
        begun = await ask(socket, reset_of(a_task()))
    assert refused["error"]["kind"] == "user" and "does not offer" in refused["error"]["message"]
    assert begun["step"]["observation"]


TASK = a_task().to_json()
DEEP = '{"x":' * 5000 + "1" + "}" * 5000
MALFORMED = [
    "", "[]", "{}", "7", "null", '"x"', "{", "NaN", DEEP, "[" * 100_000, '{"method": "reset"}', '{"method": "step"}',
    '{"method": 1, "action": {}}', '{"method": "step", "action": []}', '{"method": "step", "action": "x"}',
    '{"method": "step", "action": {"tool_calls": 7}}', '{"method": "step", "action": {"tool_calls": ["x"]}}',
    '{"method": "step", "action": {"x": 1e999}}', '{"method": "step", "action": {"x": "\\ud800"}}',
    *(json.dumps({"method": "reset", "task": TASK, "seed": seed}) for seed in ("0", True, 1.5, 1 << 70, None)),
    *(json.dumps({"method": "reset", "task": task, "seed": 0}) for task in ({"id": "x"}, DEEP, "[" * 100_000, 7)),
    "[" + "[]," * 200_000 + "[]]",
    json.dumps({"method": "reset", "task": '{"metadata": [' + "[]," * 200_000 + "[]]}", "seed": 0}),
    json.dumps({"method": "step", "action": {"tool_calls": [{}] * 300}}),
]  # fmt: skip


async def test_what_is_no_request_gets_an_error_and_its_session_goes_on(caplog):
    async with conversation() as (socket, _):
        for text in MALFORMED:
            assert set((await ask(socket, text))["error"]) == {"kind", "message"}, text[:80]
        assert (await ask(socket, reset_of(a_task())))["step"]["observation"]
        calls = called_all([("calc", {"a": 1, "b": 2, "operation": "+"})] * 300)
        reply = await ask(socket, json.dumps({"method": "step", "action": calls}))
    assert reply["error"] == {
        "kind": "infrastructure",
        "message": "InfrastructureError: an answer with 300 calls of tools is too long for a remote environment",
    }
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", 7), ("environment", ["tools"]), ("image", None), ("tools", [1]), ("tools", 7), ("other", 1),
        ("instruction", "text"), ("instruction", ["text"]), ("instruction", [{"role": 1}]),
        ("budget", {"steps": "many"}), ("budget", {"steps": -1}), ("budget", {"tokens": 1.5}), ("budget", []),
        ("metadata", [["desk", {}]]),
    ],
)  # fmt: skip
def test_a_task_with_a_field_of_another_type_is_none(key, value):
    hostile = json.loads(TASK) | {key: value}
    with pytest.raises(UserError, match="is no task"):
        Task.from_json(json.dumps(hostile))


async def closed_within(reader, seconds):
    """Whether the server ends a connection in time."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


async def test_a_client_without_the_key_has_little_time_and_few_bytes(monkeypatch):
    monkeypatch.setattr(serve_connections, "HEAD_SECONDS", 0.3)

    async with served() as (url, _):
        port = int(url.rpartition(":")[2])
        half = [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"]  # fmt: skip
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in half]
        for (_, writer), data in zip(opened, half, strict=True):
            writer.write(data)
        ended = await asyncio.gather(*(closed_within(reader, 2) for reader, _ in opened))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        monkeypatch.setattr(serve_connections, "HEAD_SECONDS", 60)
        writer.write(b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(5000)))
        assert (ended, await closed_within(reader, 0.3)) == ([True] * 5, True)


async def test_connections_without_the_key_are_few_and_the_oldest_makes_room():
    async with served() as (url, _):
        port = int(url.rpartition(":")[2])
        opened = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(serve_connections.MOST_WITHOUT_KEY + 9)
        ]
        ended = await asyncio.gather(*(closed_within(reader, 0.2) for reader, _ in opened))
        environment = RemoteEnvironment()
        observation = await _begun(environment, remote(a_task(), url))
        for _, writer in opened:
            writer.close()
    assert ended == [True] * 9 + [False] * serve_connections.MOST_WITHOUT_KEY and observation.messages


async def test_pings_are_answered_while_a_step_runs(slow):
    async with served(slow) as (url, _):
        options = {"headers": BEARER, "heartbeat": 0.2, "protocols": (PROTOCOL,)}
        async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as socket:
            await ask(socket, reset_of(a_task(environment="slow", tools=())))
            assert (await ask(socket, step_of(seconds=0.8)))["step"]


@pytest.mark.parametrize("leave", ["close", "ask again", "send bytes", "flood"])
async def test_a_client_that_leaves_or_does_not_wait_ends_its_step_and_its_session(leave, slow):
    async with conversation(slow) as (socket, server):
        await ask(socket, reset_of(a_task(environment="slow", tools=())))
        await socket.send_str(step_of(seconds=60))
        await until(lambda: server.sessions == 1)
        await asyncio.sleep(0.1)
        if leave == "close":
            await socket.close()
        elif leave == "ask again":
            await socket.send_str(step_of())
        elif leave == "send bytes":
            await socket.send_bytes(b"x")
        else:
            with contextlib.suppress(ConnectionError):
                await socket.send_str("x" * (4 * MEBI))
        await until(lambda: server.sessions == 0 and Slow.open == 0)


async def test_what_is_no_text_ends_a_session():
    async with conversation() as (socket, server):
        await socket.send_bytes(b"\0" * 9)
        await until(lambda: server.sessions == 0)


async def test_a_client_that_reads_no_reply_loses_its_session(monkeypatch, slow):
    monkeypatch.setattr("k2jax.agents.environments.serve.MESSAGE_SECONDS", 0.3)

    async with served(slow) as (url, server):
        reader, writer = await _handshake(url)
        reader._limit = 1  # asyncio stops to read
        writer.write(_frame(reset_of(a_task(environment="slow", tools=())).encode()))
        await asyncio.sleep(0.2)
        writer.write(_frame(step_of(characters=7 * MEBI).encode()))
        await until(lambda: server.sessions == 0 and Slow.open == 0)
        writer.transport.abort()
        assert server._room.free == 96 * MEBI


async def test_large_messages_take_turns_and_who_stalls_in_one_is_left(monkeypatch):
    monkeypatch.setattr(serve_connections, "MESSAGE_SECONDS", 0.4)

    async with served() as (url, _):
        stalled = []
        for _ in range(serve_connections.MOST_LARGE + 1):
            reader, writer = await _handshake(url)
            writer.write(_frame(b"x" * MEBI)[: MEBI // 2])
            stalled.append(reader)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, headers=BEARER, protocols=(PROTOCOL,)) as socket,
        ):
            assert (await ask(socket, reset_of(a_task())))["step"]  # a small message needs no turn
            assert time.monotonic() - began < 0.25
            large = a_task(metadata={"x": "y" * MEBI})
            assert (await ask(socket, reset_of(large)))["step"]
        assert all(await asyncio.gather(*(closed_within(reader, 2) for reader in stalled)))


async def test_tasks_of_all_clients_share_a_memory_which_comes_free_again():
    large = reset_of(a_task(metadata={"x": "y" * 100_000}))
    room = memory_of(large) * 5 // 2
    async with served(memory=room) as (url, server):
        async with aiohttp.ClientSession() as session:
            first, second, third = [
                await session.ws_connect(url, headers=BEARER, protocols=(PROTOCOL,)) for _ in range(3)
            ]
            for socket in (first, first, second):
                assert (await ask(socket, large))["step"]
            error = (await ask(third, large))["error"]
            assert error["kind"] == "infrastructure" and "no memory is left" in error["message"]
            await first.close()
            await until(lambda: server.sessions == 2)
            assert (await ask(third, large))["step"]
        await until(lambda: server.sessions == 0)
        assert server._room.free == room


async def test_many_resets_leave_one_environment(slow):
    async with conversation(slow) as (socket, server):
        for _ in range(50):
            await ask(socket, reset_of(a_task(environment="slow", tools=())))
        assert Slow.open == 1
        await socket.close()
        await until(lambda: server.sessions == 0 and Slow.open == 0)
        assert server._room.free == 96 * MEBI


async def _handshake(url):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = ["GET / HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Authorization: Bearer {KEY}",
            f"Sec-WebSocket-Protocol: {PROTOCOL}"]  # fmt: skip
    writer.write("\r\n".join([*head, "\r\n"]).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def _frame(payload):
    """A text message, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return b"\x81" + length + b"\0" * 4 + payload


@pytest.mark.parametrize("attack", ["wide", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ATTACKS)])
def test_the_server_s_memory_stays_bounded(attack, tmp_path):
    """Growth of a process by 64 clients that each send 8 MiB; one of them alone took 227 MiB before."""
    command = [sys.executable, str(ATTACKS), attack]
    done, _ = run_measured(command, tmp_path / "peak", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300, f"{done.stdout} MiB"
