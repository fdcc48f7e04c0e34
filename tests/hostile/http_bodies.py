"""Requests that are meant to cost a server of models memory and time: bodies, and what comes before them."""

import contextlib
import json
import time

from tests.hostile.targets import at_once, status_of

MEGA = 10**6
LONG = 30 * MEGA
MODEL = b'{"model":"x","messages":['
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {}}}


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


def send_head(target, name, unix=False):
    """Sends what a head of ``HEADS`` begins with, and goes on as long as the server takes it.

    Returns:
        The status of the answer, or 0; the one that is right beside 0 and 400; the bytes that were taken.
    """
    first, more, right = HEADS[name](target)
    taken = 0
    with contextlib.closing(target.connect(unix)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(first)
            for _ in range(60):
                connection.sendall(more)
                taken += len(more)
        return status_of(connection), right, taken


def every_means(target, unix):
    """Half-sent headers and bodies on hundreds of connections, and among them bodies of all kinds; their statuses.

    Args:
        target: the server.
        unix: whether a third of the connections goes over its Unix socket.
    """
    lists = MODEL + b"[]," * 300_000 + b"[]]}"
    kinds = [chat("a" * LONG + "\u6708"), chat("\U0001f600" * 4096), chat("hello, world " * 70_000), lists]
    with contextlib.ExitStack() as stack:
        for number in range(900):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(contextlib.closing(target.connect(unix and number % 3 == 0)))
                half = number % 3 == 1 and target.head(number % 2, Content_Length=900_000) + b" " * 200_000
                connection.setblocking(False)
                connection.send(half or target.head(0)[:-2] + b"A: " + b"a" * 30_000)
        return at_once(40, lambda i: target.post(i % 3, kinds[i % 4]))


def mute_connections(target, count, unix=False):
    """Opens connections with half a header on each, and returns how many of them the server ends."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(contextlib.closing(target.connect(unix))) for _ in range(count)]
        for connection in held:
            with contextlib.suppress(OSError):
                connection.sendall(target.head(0)[:-2] + b"A: " + b"a" * 30_000)
        time.sleep(0.2)
        ended = 0
        for connection in held:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionError):
                    assert connection.recv(1) == b""
                ended += 1
        return ended
