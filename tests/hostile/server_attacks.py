"""Rows 35, 36, 41 and 44: requests to the servers that the commands start."""

import asyncio
import contextlib
import json
import threading
import time

import aiohttp

from tests.agents.serve_attacks import CLIENTS, PAYLOADS, client
from tests.agents.test_serve_hostile import strangers
from tests.hostile.attack import Attack, Outcome, Target, expect
from tests.hostile.http_bodies import BODIES, HEADS, LONG, MEGA, READ, chat, every_means, mute_connections, send_head
from tests.hostile.targets import Server, at_once, settled

BOUNDED = "it is answered below 500, or its connection ends, at a bounded cost"
ENDED = "431, 400 or the end of the connection"
_RIGHT = dict.fromkeys(READ, (200, 400, 413))
_ANSWERED = {0, 200, 400, 413, 429}


def _of(statuses, allowed=_ANSWERED) -> Outcome:
    """Right where all statuses are allowed ones."""
    odd = sorted(set(statuses) - set(allowed))
    return Outcome(f"answers of {odd}" if odd else "", tuple(statuses))


def _bodies(server: Server) -> Outcome:
    """One after the other, so that each begins with what the one before has left."""
    statuses = {name: server.post(0, make()) for name, make in BODIES.items()}
    odd = {name: status for name, status in statuses.items() if status not in _RIGHT.get(name, (400, 413))}
    return Outcome(f"answers {odd}"[:300] if odd else "", tuple(statuses.values()))


def _long_bodies(path: str):
    def run(server: Server) -> Outcome:
        body = chat("a" * LONG + "\U0001f600")
        return _of(at_once(5, lambda i: server.post(i % 3, body, path)), {0, 400, 404, 413, 429})

    return run


def _hundreds(server: Server) -> Outcome:
    body = chat("hello world, " * (900_000 // 13))
    return _of(at_once(200, lambda i: server.post(i % 3, body)))


def _heads(server: Server) -> Outcome:
    ends = {name: send_head(server, name) for name in HEADS}
    odd = {name: end for name, end in ends.items() if end[0] not in (0, 400, end[1]) or end[2] >= 30 * MEGA}
    return Outcome(f"ends {odd}"[:300] if odd else "", tuple(status for status, _, _ in ends.values()))


def _mute(server: Server) -> Outcome:
    """More connections than a server has; those beyond are ended, and the others in their time."""
    ended = mute_connections(server, 1100)
    return expect(ended >= 1100 - 1024, f"{ended} of 1,100 ended")


def _half_a_header(server: Server) -> Outcome:
    with contextlib.closing(server.connect()) as connection:
        connection.sendall(server.head(0)[:-2])
        begun = time.monotonic()
        status = int(connection.recv(100).split(b" ", 2)[1])
        return Outcome("" if status == 408 and time.monotonic() - begun < 20 else f"answer {status}", (status,))


def _every_means(server: Server) -> Outcome:
    return _of(every_means(server, unix=False))


def _keys(server: Server) -> Outcome:
    """A gateway's rollouts and routes of an operator, with keys of others and with none."""
    own, statuses = server.rollouts[0], []
    headers = [{"Authorization": f"Bearer {key}"} for key in ("", "x", server.rollouts[1]["key"], own["key"] + "x")]
    for changed in (*headers, {"Authorization": f"Basic {own['key']}"}, {"X_Api_Key": "x", "Authorization": ""}):
        statuses += [server.post(0, chat("Hello"), path, **changed) for path in ("chat/completions", "messages")]
    operator = f"POST /rollouts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {own['key']}\r\n".encode()
    with contextlib.closing(server.connect()) as connection:
        connection.sendall(operator + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        statuses.append(int(connection.recv(100).split(b" ", 2)[1]))
    return _of(statuses, {401, 403})


def _hosts(server: Server) -> Outcome:
    """A server without keys, asked by a page of another site."""
    hosts = ("evil.example", "evil.example:80", f"127.0.0.1.evil.example:{server.port}", "", "a" * 3000, "[::1")
    statuses = [server.post(0, chat("Hello"), Host=host) for host in hosts]
    statuses += [server.post(0, chat("Hello"), Origin=origin) for origin in ("http://evil.example", "null")]
    return _of(statuses, {0, 400, 403, 421})


def _strangers(server: Server) -> Outcome:
    async def run() -> list[int]:
        url, statuses = f"ws://127.0.0.1:{server.port}", []
        async with aiohttp.ClientSession() as session:
            for headers, _ in strangers(server.key):
                for query in ("/", f"/?key={server.key}"):
                    try:
                        async with session.ws_connect(url + query, headers=headers):
                            statuses.append(200)
                    except aiohttp.WSServerHandshakeError as error:
                        statuses.append(error.status)
        return statuses

    return _of(asyncio.run(run()), {401, 403})


def _clients(name: str):
    """Many clients with the key, each with a message of 8 MiB."""

    def run(server: Server) -> Outcome:
        payload, stop = PAYLOADS[name](), threading.Event()
        sent = len(payload) - (100 if name == "stalled" else 0)
        arguments = (server.port, payload, sent, stop, server.key)
        threads = [threading.Thread(target=client, args=arguments, daemon=True) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        settled(4.0)
        stop.set()
        for thread in threads:
            thread.join(20)
        return Outcome()

    return run


def _messages(server: Server) -> Outcome:
    """Values of every wrong kind in the place of each field."""
    wrong = (None, True, -1, 1e300, "", "x" * 1000, [], [[]], {}, {"a": {}}, "\ud800")
    fields = ("model", "messages", "temperature", "max_tokens", "top_p", "n", "seed", "stop", "stream", "tools",
              "tool_choice", "response_format", "logprobs", "user", "stream_options", "metadata")  # fmt: skip
    statuses = []
    for field in fields:
        for value in wrong:
            body = {"model": "x", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}], field: value}
            statuses.append(server.post(0, json.dumps(body).encode()))
    return _of(statuses, (*_ANSWERED, 404))  # of a model that is not there


def _models(target: Target) -> list[Attack]:
    """The attacks on a server of models."""
    to = {"target": target, "seconds": 120.0}
    return [
        Attack(35, f"{target}: 30 MB of {len(BODIES)} kinds", BOUNDED, _bodies, **to),
        *(
            Attack(35, f"{target}: five of 30 MB to {path}", BOUNDED, _long_bodies(path), **to)
            for path in ("chat/completions", "messages/count_tokens")
        ),
        Attack(35, f"{target}: 200 bodies of 0.9 MB", BOUNDED, _hundreds, **to),
        Attack(35, f"{target}: values of wrong kinds", "none is an answer of 5xx", _messages, **to),
        Attack(36, f"{target}: {len(HEADS)} heads without end", ENDED, _heads, **to),
        Attack(36, f"{target}: 1,100 connections without a request", "those beyond 1,024 are ended", _mute, **to),
        Attack(36, f"{target}: half a header", "408 after 15 s", _half_a_header, **to),
        Attack(36, f"{target}: every means at once", BOUNDED, _every_means, **to),
    ]


ATTACKS = [
    *_models("gateway"),
    *_models("serve"),
    Attack(41, "gateway: keys of others and of nobody", "401 or 403", _keys, target="gateway"),
    Attack(44, "serve: hosts and origins of others", "400, 403 or 421", _hosts, target="serve"),
    Attack(41, "environments: without the key", "401 or 403", _strangers, target="environments"),
    *(
        Attack(41, f"environments: 64 clients with {name}", BOUNDED, _clients(name), target="environments")
        for name in PAYLOADS
    ),
]
