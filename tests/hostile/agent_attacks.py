"""Rows 35, 36 and 39: a black-box agent in its sandbox that attacks the gateway of its episode, or its budgets."""

from collections.abc import Callable
import dataclasses
import json
from typing import Any

from k2jax.agents.environment import Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.client import Sampling, ScriptedClient
from tests.agents.gateway.repository import small_agent, task, write_agent
from tests.agents.gateway.scripted import CHAT, TOKENIZER, plain_reply
from tests.agents.gateway.test_agent_clocks import ALWAYS_ASKS, ASKING, Slow
from tests.hostile.attack import Attack, Outcome, Place

LIMITS = "seconds=60 wall=90 context=32768"
"""Of the scaffold. Within its default context, a million tokens, what a rollout may record is 0.8 GB of the host."""
BOUNDED = "the episode ends with what the agent may have, at a bounded cost to the process of the gateway"
SENDING = """
import http.client, json, socket, sys, threading, time, urllib.parse
base, key, task = sys.argv[1:]
url = urllib.parse.urlsplit(base)
PATH = url.path + "/v1/chat/completions"
HEADERS = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
statuses = []
def post(body, path=PATH, headers=HEADERS):
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    try:
        connection.request("POST", path, body, headers)
        statuses.append(connection.getresponse().status)
    except (OSError, http.client.HTTPException): statuses.append(0)
    finally: connection.close()
def at_once(count, run):
    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
def raw(head, more, times):
    with socket.create_connection((url.hostname, url.port)) as s:
        try:
            s.sendall(head)
            for _ in range(times): s.sendall(more)
            s.settimeout(30)
            statuses.append(int((s.recv(100).split(b" ") + [0, 0])[1]))
        except (OSError, ValueError): statuses.append(0)
HEAD = ("POST " + PATH + " HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer " + key + "\\r\\n").encode()
post(json.dumps({"model": "x", "messages": [{"role": "user", "content": "Hello"}]}))
%s
print("STATUSES", json.dumps(statuses))
"""
MODEL = """'{"model":"x","messages":['"""
SENDERS = {
    "bodies of lists": f"for _ in range(4): post({MODEL} + '[],' * 10_000_000 + '[]]}}')",
    "bodies of lists below the limit": f"at_once(16, lambda n: post({MODEL} + '[],' * 2_600_000 + '[]]}}'))",
    "wide bodies": "at_once(16, lambda n: post(json.dumps({'model': 'x', 'messages': [{'role': 'user', 'content':"
    " 'a' * 8_000_000 + chr(0x1f600)}]}, ensure_ascii=False).encode()))",
    "long prompts": "at_once(8, lambda n: post(json.dumps({'model': 'x', 'messages': [{'role': 'user', 'content':"
    " 'hello world, ' * 600_000}]})))",
    "200 bodies at once": "at_once(200, lambda n: post(json.dumps({'model': 'x', 'messages': [{'role': 'user',"
    " 'content': 'hello world, ' * 60_000}]})))",
    "a header without end": "raw(HEAD + b'A: ', b'a' * 1_000_000, 60)",
    "headers without end": "raw(HEAD, b''.join(b'h%06d: b\\r\\n' % i for i in range(90_000)), 60)",
    "pipelined requests": "raw(b'', (HEAD + b'Content-Length: 2\\r\\n\\r\\n{}') * 2000, 60)",
    "300 connections without a request": "held = []\n"
    "try:\n    for _ in range(300): held.append(socket.create_connection((url.hostname, url.port)))\n"
    "except OSError: pass\n"
    "for s in held:\n    try: s.sendall(HEAD + b'A: ' + b'a' * 30_000)\n    except OSError: pass\ntime.sleep(3)",
    "rollouts of others": "for path in ('/rollouts', '/rollouts/episode/close', '/r/other/v1/chat/completions',"
    " '/../' + PATH, '/rollouts/episode'): post('{}', path)",
    "output without end": "for _ in range(200): print('x' * 1_000_000)",
}
"""What an agent does after one honest request, as Python."""


async def _episode(place: Place, source: str, more: str, client: Any, **fields: Any) -> Any:
    agent = small_agent(files={"${home}/agent.py": source.replace("$", "$$")}, memory=1024, **fields)
    path = write_agent(place.folder / "agent.json", agent)
    of = dataclasses.replace(task(), scaffold=f"black_box agent={path} {more}")
    environment = FilesEnvironment(Services(lambda: place.backend))
    options = {"key": EpisodeKey("train", 3, 1, 2), "seed": 5, "sampling": Sampling(max_tokens=30)}
    return await run_episode(of, client, CHAT, TOKENIZER, environment, **options)


def _sends(name: str) -> Callable[[Place], Any]:
    async def run(place: Place) -> Outcome:
        ended = await _episode(place, SENDING % SENDERS[name], LIMITS, ScriptedClient(plain_reply))
        report = ended.metadata.get("agent", {})
        statuses = report.get("output", "").partition("STATUSES ")[2].splitlines()[:1]
        shown = tuple(json.loads(statuses[0])) if statuses else ()
        asked = any(request["tokens"] > 0 for request in ended.metadata.get("requests", ()))
        right = ended.status in ("finished", "truncated") and asked
        return Outcome("" if right else f"{ended.status}: {ended.error} {report}"[:300], shown)

    return run


def _budget(client: type, source: str, turns: str, more: str, right: str) -> Callable[[Place], Any]:
    async def run(place: Place) -> Outcome:
        ended = await _episode(place, source, more, client(plain_reply), turns=turns)
        ended_by = ended.metadata.get("agent", {}).get("ended_by")
        return Outcome("" if (ended.status, ended_by) == ("truncated", right) else f"{ended.status} by {ended_by}")

    return run


BUDGETS = {
    "a thread that always asks": (Slow, ALWAYS_ASKS, "all", "seconds=2", "time"),
    "a thread that asks for ever": (Slow, ASKING + "forever()", "all", "seconds=60 wall=3", "wall time"),
    "side calls alone": (
        ScriptedClient, ASKING + "for n in range(40): ask(str(n))", "tools", "side_calls=4",
        "itself, without a turn of its own",
    ),
}  # fmt: skip
ATTACKS = [
    *(
        Attack(36 if "head" in name or "conn" in name or "pipe" in name else 35, f"an agent: {name}", BOUNDED,
               _sends(name), in_sandbox=True, seconds=300)
        for name in SENDERS
    ),
    *(
        Attack(39, f"an agent: {name}", "its time and its calls end as they must", _budget(*fields), in_sandbox=True)
        for name, fields in BUDGETS.items()
    ),
]  # fmt: skip
