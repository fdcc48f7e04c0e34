"""Agents that send as much as they can: bodies, headers and connections cost bounded memory and no pause of others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
import contextlib
import json
import mmap
from pathlib import Path
import socket
import subprocess
import sys
import time

import pytest

from tests.agents.gateway.attacked import Probe

MEGA = 10**6
MOST_GROWTH = 300 * MEGA
"""Memory of the gateway's process above what it had before an attack [bytes]."""
MOST_PAUSE = 0.5
"""Pause of the event loop [processor seconds of the gateway's process]."""
LONG = 30 * MEGA
MODEL = b'{"model":"x","messages":['
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {}}}


class Attacked:
    """A gateway in a process of its own."""

    def __init__(self, folder):
        command = [sys.executable, "-m", "tests.agents.gateway.attacked", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        told = json.loads(self.process.stdout.readline())
        self.port, self.socket, self.rollouts = told["port"], told["socket"], told["rollouts"]
        assert "listening" in self.process.stdout.readline()

    def told(self):
        self.process.stdin.write("\n")
        return json.loads(self.process.stdout.readline())

    def connect(self, unix=False):
        if not unix:
            return socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(self.socket)
        return connection

    def head(self, rollout, path="chat/completions", **headers):
        access = self.rollouts[rollout]
        lines = {"Host": "x", "Authorization": f"Bearer {access['key']}", "Content-Type": "application/json", **headers}
        text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return f"POST {access['path']}/v1/{path} HTTP/1.1\r\n{text}\r\n".encode()

    def post(self, rollout, body, path="chat/completions", unix=False):
        """The status of an answer; 0 where the connection ended without one."""
        with contextlib.closing(self.connect(unix)) as connection, contextlib.suppress(OSError):
            connection.sendall(self.head(rollout, path, Content_Length=len(body)) + body)
            return status_of(connection)
        return 0


def status_of(connection):
    with contextlib.suppress(OSError):
        line = connection.recv(4096).split(b" ", 2)
        return int(line[1]) if len(line) == 3 else 0
    return 0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    attacked = Attacked(tmp_path_factory.mktemp("gw"))
    good(attacked)
    while not Path(attacked.socket).exists():
        time.sleep(0.01)
    yield attacked
    attacked.process.kill()
    attacked.process.wait()


def good(gateway, rollout=3):
    assert gateway.post(rollout, chat("Hello")) == 200


def bears(gateway, attack):
    """Runs an attack, which returns statuses; others are served during it and after it."""
    time.sleep(0.1)
    gateway.told()
    with ThreadPoolExecutor(1) as other:
        beside = other.submit(good, gateway)
        statuses = attack(gateway)
        beside.result()
        told = gateway.told()
    good(gateway)
    assert told["growth"] < MOST_GROWTH, f"{told['growth'] / MEGA:.0f} MB"
    assert told["pause"] < MOST_PAUSE, f"{told['pause']:.2f} s"
    assert all(0 <= status < 500 for status in statuses), statuses
    return statuses


def at_once(count, run):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def chat(content):
    return json.dumps({"model": "x", "messages": [{"role": "user", "content": content}]}, ensure_ascii=False).encode()


def calling(arguments):
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    user = {"role": "user", "content": "a"}
    messages = [user, {"role": "assistant", "content": None, "tool_calls": [call]}, user]
    return json.dumps({"model": "x", "messages": messages, "tools": [TOOL]}).encode()


BODIES = {
    "lists": lambda: MODEL + b"[]," * (LONG // 3) + b"[]]}",
    "objects of many keys": lambda: MODEL + b"{" + b",".join(b'"%07d":1' % i for i in range(2_000_000)) + b"}]}",
    "plain text": lambda: chat("hello world, " * (LONG // 13)),
    "one wide character": lambda: chat("a" * LONG + "\U0001f600"),
    "one wide character as an escape": lambda: MODEL + b'"' + b"a" * LONG + b'\\ud83d\\ude00"]}',
    "lists in the arguments of a call": lambda: calling('{"a":[' + "[]," * (LONG // 3) + "[]]}"),
    "tools": lambda: json.dumps(
        {"model": "x", "messages": [], "tools": [{**TOOL, "function": {"name": "b", "description": "a " * 15 * MEGA}}]}
    ).encode(),
    "a text in the arguments of a call that are an object": lambda: calling({"a": "hello world, " * (LONG // 13)}),
    "many texts in one message": lambda: chat([{"type": "text", "text": "\U0001f600" * 3 * 4096}] * 20),
    "a sampling parameter that is a long text": lambda: (
        MODEL + b'{"role":"user","content":"a"}],"temperature":"' + b"\x7f" * LONG + b'"}'
    ),
    "a field that nobody reads": lambda: json.dumps(
        {"model": "x", "messages": [{"role": "user", "content": "a", "junk": "b" * LONG}]}
    ).encode(),
}
READ = ("a field that nobody reads", "a sampling parameter that is a long text")


@pytest.mark.parametrize("body", BODIES)
def test_a_body_of_thirty_megabytes_is_refused_or_read_at_a_bounded_cost(gateway, body):
    data = BODIES[body]()
    [status] = bears(gateway, lambda gateway: [gateway.post(0, data)])
    assert status in ((200,) if body in READ else (400, 413))


@pytest.mark.parametrize("path", ["chat/completions", "messages/count_tokens"])
def test_long_bodies_of_several_rollouts_come_one_after_the_other(gateway, path):
    body = chat("a" * LONG + "\U0001f600")
    statuses = bears(gateway, lambda gateway: at_once(5, lambda i: gateway.post(i % 3, body, path)))
    assert set(statuses) <= {0, 400, 413}  # 0: refused before the body was read to its end


@pytest.mark.slow
def test_a_rollout_sends_hundreds_of_bodies_at_once(gateway):
    body = chat("hello world, " * (900_000 // 13))
    statuses = bears(gateway, lambda gateway: at_once(200, lambda i: gateway.post(i % 3, body)))
    assert 400 in statuses and set(statuses) <= {0, 400, 429}


@pytest.mark.slow
def test_every_means_at_once(gateway):
    """Half-sent headers and bodies on hundreds of connections, and among them bodies of all kinds."""
    lists = MODEL + b"[]," * 300_000 + b"[]]}"
    kinds = [chat("a" * LONG + "\u6708"), chat("\U0001f600" * 4096), chat("hello, world " * 70_000), lists]

    def attack(gateway):
        with contextlib.ExitStack() as stack:
            for number in range(900):
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(contextlib.closing(gateway.connect(unix=number % 3 == 0)))
                    half = number % 3 == 1 and gateway.head(number % 2, Content_Length=900_000) + b" " * 200_000
                    connection.setblocking(False)
                    connection.send(half or gateway.head(0)[:-2] + b"A: " + b"a" * 30_000)
            return at_once(40, lambda i: gateway.post(i % 3, kinds[i % 4]))

    statuses = bears(gateway, attack)
    assert set(statuses) <= {0, 400, 413, 429}


HEADERS = b"".join(b"h%06d: b\r\n" % i for i in range(90_000))
CHUNKED = {"Transfer_Encoding": "chunked"}
HEADS = {
    "a header without end": lambda gateway: (gateway.head(0)[:-2] + b"A: ", b"a" * MEGA, 431),
    "headers without end": lambda gateway: (gateway.head(0)[:-2], HEADERS, 431),
    "a request line without end": lambda gateway: (b"POST /", b"a" * MEGA, 431),
    "trailers without end": lambda gateway: (gateway.head(0, **CHUNKED) + b"1\r\n{\r\n0\r\n", HEADERS, 0),
    "an extension without end": lambda gateway: (gateway.head(0, **CHUNKED) + b"1;", b"a" * MEGA, 0),
    "pipelined requests": lambda gateway: (b"", (gateway.head(0, Content_Length=2) + b"{}") * 2000, 0),
}


@pytest.mark.parametrize("unix", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_what_comes_before_a_body_has_an_end(gateway, head, unix):
    first, more, status = HEADS[head](gateway)
    sent = []

    def attack(gateway):
        with contextlib.closing(gateway.connect(unix)) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(first)
                for _ in range(60):
                    connection.sendall(more)
                    sent.append(len(more))
            return [status_of(connection)]

    [given] = bears(gateway, attack)
    assert sum(sent) < 30 * MEGA and given in (0, status, 400)


def test_connections_that_say_nothing_have_a_limit(gateway):
    def attack(gateway):
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(contextlib.closing(gateway.connect(unix=True))) for _ in range(200)]
            for connection in held:
                with contextlib.suppress(OSError):
                    connection.sendall(gateway.head(0)[:-2] + b"A: " + b"a" * 30_000)
            time.sleep(0.2)
            ended = 0
            for connection in held:
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    with contextlib.suppress(ConnectionError):
                        assert connection.recv(1) == b""
                    ended += 1
            assert ended == 200 - 128
        return []

    bears(gateway, attack)


def test_the_probe_sees_memory_and_pauses():
    """What the tests above rest on: a process that grows and an event loop that stands still are seen."""
    probe = Probe()

    async def run():
        task = asyncio.create_task(probe.run())
        await asyncio.sleep(0.05)
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass
        await asyncio.sleep(0.05)
        task.cancel()

    with mmap.mmap(-1, 64 * MEGA) as held:  # new pages, whatever this process has at hand
        held.write(b"x" * 64 * MEGA)
        asyncio.run(run())
        told = probe.told()
    assert told["growth"] > 60 * MEGA and told["pause"] > 0.15
    assert probe.told()["growth"] < 10 * MEGA
