"""An agent in a sandbox reaches its own rollout at the gateway, through one socket, and nothing else."""

import asyncio
import json
import os
from pathlib import Path
import tempfile

import pytest

from k2jax.agents.gateway.socket import rollout_socket
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.forward import forwarded
from k2jax.trajectory import verify
from tests.agents.gateway.scripted import OPERATOR, Bench, chat_body, reply_ids, spec
from tests.agents.sandbox.backends import PYTHON, backend, python

PORT = 8123
AGENT = """
import json, os, socket, sys, urllib.error, urllib.request
told = json.load(sys.stdin)
def ask(path, key, body=None):
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request("http://127.0.0.1:8123" + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer: return [answer.status, json.load(answer)]
    except urllib.error.HTTPError as error: return [error.code, None]
def reaches(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        try: s.connect(address); return True
        except OSError: return False
def resolves(name):
    try: socket.getaddrinfo(name, 80); return True
    except OSError: return False
print(json.dumps({
    "own": ask(told["own"] + "/v1/chat/completions", told["key"], told["body"]),
    "other key": ask(told["own"] + "/v1/models", told["other key"])[0],
    "others": [ask(path + "/v1/models", key)[0] for path in (told["other"], told["own"], told["own"] + "x")
               for key in (told["other key"], told["operator"])],
    "operator": [ask(path, told["operator"])[0] for path in ("/rollouts", told["rollout"], "/health")],
    "reached": [a for a in map(tuple, told["addresses"]) if reaches(socket.AF_INET, a)],
    "sockets": [p for p in told["sockets"] if os.path.exists(p) or reaches(socket.AF_UNIX, p)],
    "abstract": reaches(socket.AF_UNIX, chr(0) + "k2jax-test-abstract"),
    "names": [n for n in ("localhost.localdomain", "example.com", "metadata.google.internal") if resolves(n)],
    "interfaces": [name for _, name in socket.if_nameindex()],
}))
"""


def test_an_agent_in_a_sandbox_reaches_its_own_rollout_and_nothing_else():
    bench = Bench(lambda prompt, sampling: reply_ids("", "Yes."))
    mine, other = bench.gateway.open(spec()), bench.gateway.open(spec())

    async def run(folders):
        files = [Path(folder) / "socket" for folder in folders]
        local = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        abstract = await asyncio.start_unix_server(lambda reader, writer: writer.close(), "\0k2jax-test-abstract")
        address = local.sockets[0].getsockname()
        told = {
            "own": mine.path, "key": mine.key, "other": other.path, "other key": other.key, "operator": OPERATOR,
            "rollout": f"/rollouts/{mine.rollout}",
            "body": chat_body([("user", "Go")]), "sockets": [str(files[1])],
            "addresses": [address, ("169.254.169.254", 80), ("10.0.0.1", 80), ("127.0.0.53", 53), ("8.8.8.8", 53)],
        }  # fmt: skip
        box = SandboxSpec(read_only=(*PYTHON.read_only, folders[0]))
        async with (
            local,
            abstract,
            rollout_socket(bench.app, mine.path, files[0]),
            rollout_socket(bench.app, other.path, files[1]),
            await backend("bubblewrap").open(box) as sandbox,
        ):
            command = forwarded(python(AGENT), str(files[0]), port=PORT)
            return await sandbox.exec(command, stdin=json.dumps(told).encode(), timeout=60), files

    with tempfile.TemporaryDirectory(dir="/var/tmp") as a, tempfile.TemporaryDirectory(dir="/var/tmp") as b:
        for folder in (a, b):
            os.chmod(folder, 0o755)
        result, files = asyncio.run(run((a, b)))
        assert not any(file.exists() for file in files)
    assert result.code == 0, result.stderr
    said = json.loads(result.stdout)
    status, answer = said.pop("own")
    assert status == 200 and answer["choices"][0]["message"]["content"] == "Yes."
    assert said == {
        "other key": 401, "others": [404, 404, 401, 401, 404, 404], "operator": [404, 404, 404], "reached": [],
        "sockets": [], "abstract": False, "names": [], "interfaces": ["lo"],
    }  # fmt: skip
    assert verify(bench.gateway.session(mine.rollout).main.trajectory) == []
    assert not bench.gateway.session(other.rollout).requests


def test_a_socket_that_cannot_be_made_says_so(tmp_path):
    async def run():
        async with rollout_socket(Bench().app, "/r/a", tmp_path / ("a" * 120)):
            pass

    with pytest.raises(OSError, match="107 bytes"):
        asyncio.run(run())
