"""A client of remote environments: where tasks lead it, to whom it shows its key, and what a server can tell it."""

import asyncio
import dataclasses
import json
import logging
import sys

from aiohttp import web
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environments.remote import RemoteEnvironment, remote
from k2jax.agents.environments.remote_messages import PROTOCOL
from k2jax.agents.environments.remote_servers import VARIABLE, server_key
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.scaffolds.scripted import said
from k2jax.agents.task import Task
from k2jax.errors import UserError
from tests.agents.remote_server import KEY, listed, served
from tests.memory import run_measured


def a_task(url="", **told):
    (task,) = load_tasks("tool_use", ("count=1", "kinds=calc1"))
    if not url:
        return task
    told = {"url": url, "environment": "tools", "timeout": 5.0} | told
    return dataclasses.replace(task, environment="remote", metadata={"remote": told})


@pytest.fixture(autouse=True)
def nothing_listed(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


async def running(handle, use):
    """What a coroutine function returns that gets the address of an HTTP server, whose requests ``handle`` answers."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return await use(f"ws://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def answered(handle, use):
    return asyncio.run(running(handle, use))


def test_a_task_leads_to_no_address_that_the_user_has_not_listed():
    requests = []

    async def handle(request):
        requests.append(dict(request.headers))
        return web.Response(text="internal")

    async def use(url):
        hostile = Task.from_json(a_task(url).to_json())
        other = url.replace("127.0.0.1", "localhost")
        with pytest.raises(UserError, match="not listed here"):
            await RemoteEnvironment().reset(hostile, 0)
        for same in (other, f"{url}/", f"{url}/admin", url.replace("ws://", "ws://user@"), url.upper()):
            with listed(other), pytest.raises(UserError, match="not listed here"):
                await RemoteEnvironment().reset(a_task(same if same != other else url), 0)

    answered(handle, use)
    assert not requests


def test_a_listed_server_leads_to_no_other_one_and_its_key_goes_nowhere_else():
    requests = []

    async def internal(request):
        requests.append(dict(request.headers))
        return web.Response(text="internal")

    async def follow(url):
        with listed(url), pytest.raises(EnvironmentFailedError, match="no environment at"):
            await RemoteEnvironment().reset(a_task(url), 0)

    async def use(target):
        async def redirect(request):
            raise web.HTTPFound(target.replace("ws:", "http:") + "/latest/meta-data")

        await running(redirect, follow)

    answered(internal, use)
    assert not requests


def test_the_key_is_in_no_task_no_message_and_no_error(caplog):
    caplog.set_level(logging.DEBUG)
    seen = []

    async def handle(request):
        seen.append((request.raw_headers, request.path_qs))
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        seen.append((await socket.receive()).data)
        await socket.send_str("{}")
        return socket

    async def use(url):
        with listed(url):
            task = remote(a_task(), url)
            with pytest.raises(EnvironmentFailedError) as failure:
                await RemoteEnvironment().reset(task, 0)
        return task, failure

    task, failure = answered(handle, use)
    (headers, path), request = seen
    assert (b"Authorization", f"Bearer {KEY}".encode()) in headers and path == "/"
    assert not any(KEY in text for text in (task.to_json(), request, repr(failure.value), caplog.text))


async def test_a_wrong_key_is_the_user_s_mistake_and_is_not_shown():
    async with served() as (url, _):
        with listed(url, key="another-key"), pytest.raises(UserError, match="need another key") as mistake:
            await RemoteEnvironment().reset(a_task(url), 0)
        assert "another-key" not in str(mistake.value)


@pytest.mark.parametrize("protocols", [(), ("k2jax.environment.0",)])
def test_a_server_of_another_version_is_refused_in_one_line(protocols):
    async def handle(request):
        socket = web.WebSocketResponse(protocols=protocols)
        await socket.prepare(request)
        await socket.receive()
        return socket

    async def use(url):
        environment = RemoteEnvironment()
        with listed(url), pytest.raises(UserError, match=r"does not speak .*install the same"):
            await environment.reset(remote(a_task(), url), 0)
        assert environment._session is None

    answered(handle, use)


async def test_both_ends_refuse_the_other_s_version(monkeypatch):
    monkeypatch.setattr("k2jax.agents.environments.remote.PROTOCOL", "k2jax.environment.2")
    async with served() as (url, _):
        with listed(url), pytest.raises(UserError, match="does not speak"):
            await RemoteEnvironment().reset(a_task(url), 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("ws://h:1=/no/such/file", "cannot read the key in /no/such/file"),
        ("ws://h:1=/dev/null", "holds no key"),
        ("ws://h:1=", "entry 1 of"),
        ("ws://h:1", "entry 1 of"),
        ("http://h:1=/x", "entry 1 of"),
        ("ws://user:secret@h:1=/x", "entry 1 of"),
        ("ws://h:1?key=/x", "entry 1 of"),
        ("ws://h:1='/x", "no closing quotation"),
    ],
)
def test_a_list_of_servers_that_cannot_be_read_is_the_user_s_mistake(entry, message, monkeypatch):
    monkeypatch.setenv(VARIABLE, entry)
    with pytest.raises(UserError, match=message) as mistake:
        server_key("ws://h:1")
    assert "secret" not in str(mistake.value)


@pytest.mark.parametrize("timeout", ["nan", "inf", -1, 0, 1e9, None, [], "x"])
def test_a_task_says_no_odd_time(timeout):
    with pytest.raises(UserError, match=r"for a request|names no server"):
        asyncio.run(RemoteEnvironment().reset(a_task("ws://h:1", timeout=timeout), 0))


STEP = {"observation": [], "terminated": False, "truncated": False, "info": {}}
REPLIES = [
    "", "[]", "{}", '{"step": {}, "tools": []}', "[" * 100_000,
    '{"step": {"observation": [1], "info": {}}, "tools": []}',
    '{"step": {"observation": [], "terminated": true, "truncated": false, "info": []}, "tools": []}',
    "[" + "[]," * 200_000 + "[]]",
    '{"step":' * 3000 + "1" + "}" * 3000,
    json.dumps({"step": STEP | {"info": [[[]]]}, "tools": []}),
    json.dumps({"step": STEP, "tools": []}).replace('"info": {}', '"info": {"x": 1e999}'),
    json.dumps({"step": STEP, "tools": []}).replace('"info": {}', '"info": {"x": "\\ud800"}'),
    json.dumps({"step": STEP | {"observation": [{"role": "user", "content": 7}]}, "tools": []}),
    json.dumps({"step": STEP | {"observation": [{"role": "user", "content": [7]}]}, "tools": []}),
    json.dumps({"step": STEP | {"observation": [{"role": "tool", "content": "", "name": {}}]}, "tools": []}),
    json.dumps({"step": STEP | {"observation": {"role": "user"}}, "tools": []}),
    json.dumps({"step": STEP, "tools": [{"function": {"name": 7}}]}),
    json.dumps({"step": STEP, "tools": 7}),
    json.dumps({"step": [], "tools": []}),
    json.dumps({"error": "x"}),
    json.dumps({"error": {"kind": "user"}}),
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply[:30])
def test_whatever_a_server_says_is_a_step_or_an_infrastructure_error(reply):
    with pytest.raises(EnvironmentFailedError, match="reply is none"):
        asyncio.run(RemoteEnvironment()._read(reply))


def test_what_a_server_calls_the_user_s_mistake_is_short_and_has_no_control_characters():
    reply = json.dumps({"error": {"kind": "user", "message": "\x1b]0;x\x07" + "y" * 10_000}})
    with pytest.raises(UserError) as mistake:
        asyncio.run(RemoteEnvironment()._read(reply))
    assert len(str(mistake.value)) < 400 and str(mistake.value).isprintable()


@pytest.mark.parametrize("does", ["headers", "slow headers", "pings", "large", "close"])
def test_a_server_that_does_not_answer_is_left_in_time(does):
    async def handle(reader, writer):
        if does == "headers":
            writer.write(b"HTTP/1.1 101 x\r\n" + b"X: y\r\n" * 500_000)
        elif does == "slow headers":
            writer.write(b"HTTP/1.1 101 x\r\n")
        await asyncio.sleep(5)

    async def websocket(request):
        socket = web.WebSocketResponse(autoping=False, protocols=(PROTOCOL,))
        await socket.prepare(request)
        await socket.receive()
        if does == "large":
            await socket.send_str("x" * (9 << 20))
        if does == "pings":
            for _ in range(100):
                await socket.ping()
                await asyncio.sleep(0.02)
        return socket

    async def reset(url):
        with listed(url), pytest.raises(EnvironmentFailedError):
            await RemoteEnvironment().reset(a_task(url, timeout=0.4), 0)

    async def raw():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with asyncio.timeout(3):
            await reset(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        server.close()

    if "headers" in does:
        asyncio.run(raw())
    else:
        answered(websocket, reset)


CLIENT = """
import asyncio, resource
from k2jax.agents.environments.remote import RemoteEnvironment
from k2jax.agents.errors import EnvironmentFailedError

async def read(text):
    try:
        await RemoteEnvironment()._read(text)
    except EnvironmentFailedError:
        return
    raise AssertionError

async def main():
    text = "[" + "[]," * ((8 << 20) // 3) + "[]]"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await asyncio.gather(*(read(text) for _ in range(16)))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)

asyncio.run(main())
"""


def test_large_replies_of_many_values_take_no_more_memory_than_their_text(tmp_path):
    command = [sys.executable, "-c", CLIENT]
    done, _ = run_measured(command, tmp_path / "peak", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200, f"{done.stdout} MiB"


async def test_an_answer_that_cannot_be_sent_is_an_infrastructure_error():
    async with served() as (url, _):
        environment = RemoteEnvironment()
        await environment.reset(remote(a_task(), url), 0)
        with pytest.raises(EnvironmentFailedError, match="cannot be sent"):
            await environment.step({**said(""), "content": "x" * (9 << 20)})
