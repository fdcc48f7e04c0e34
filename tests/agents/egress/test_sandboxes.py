"""Real sandboxes that reach listed hosts, and episodes whose trajectories say what was asked."""

import asyncio
import contextlib
import dataclasses
import shutil
import socket
import threading

import pytest

from k2jax.agents.egress.egress_log import EGRESS
from k2jax.agents.environment import Services
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.remote import check_remote_spec
from k2jax.agents.scaffolds.scripted import called_all, play, play_actions
from k2jax.errors import UserError
from tests.agents.egress.origins import HELLO, REACH, named
from tests.agents.sandbox.backends import PYTHON, SPEC, python
from tests.agents.sandbox.made_images import IMAGE, host_image
from tests.agents.tool_episodes import task

FETCH = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try: print(urllib.request.urlopen(url, timeout=10).read().decode())
    except urllib.error.HTTPError as error: print(error.code)
    except OSError as error: print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def there():
    """A server of this machine at all of its own addresses, beside the event loops of tests; gives its port."""
    asked = []
    server = socket.create_server(("0.0.0.0", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(1 << 16))
                    connection.sendall(HELLO)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def made(name, port, images=""):
    """A backend whose user allows one name and one address."""
    return make_backend(name, hosts=[f"a.example:{port}", f"127.0.0.2:{port}"], images=images)


def spec(port, **fields):
    return dataclasses.replace(SPEC, hosts=(f"a.example:{port}", f"127.0.0.2:{port}"), **fields)


BACKENDS = ["bubblewrap", *(pytest.param(n, marks=pytest.mark.slow) for n in ("nsjail", "bubblewrap on an image"))]


@pytest.mark.parametrize("name", BACKENDS)
async def test_programs_in_a_sandbox_reach_listed_hosts_alone(name, there, monkeypatch):
    named(monkeypatch, a_example=["127.0.0.2"], b_example=["127.0.0.2"])
    kind, _, on_image = name.partition(" on ")
    backend = made(kind, there, host_image() if on_image else "")
    urls = [f"http://{host}:{there}/x?y" for host in ("a.example", "127.0.0.2", "b.example", "127.0.0.3", "127.0.0.1")]
    async with await backend.open(spec(there, image=IMAGE if on_image else "")) as sandbox:
        fetched = await sandbox.exec(python(FETCH, *urls))
        missing = await sandbox.exec(["no-such-program"])
        curl = ["curl", "--silent", "--include", urls[0]]
        said = None if on_image or not shutil.which("curl") else await sandbox.exec(curl)
    backend.close()
    assert fetched.stdout.split() == [b"hello", b"hello", b"403", b"403", b"URLError"], fetched
    assert (missing.code, missing.stderr) == (127, b"no-such-program: No such file or directory\n")
    assert said is None or (said.stdout.startswith(b"HTTP/1.1 200 OK") and said.stdout.endswith(b"hello"))
    hosts = [entry["host"] for entry in sandbox.egress._entries if entry["status"] == 200]
    assert hosts[:2] == ["a.example", "127.0.0.2"] and len(hosts) == 2 + (said is not None)


async def test_a_sandbox_with_a_proxy_does_not_reach_services_of_this_machine(there, monkeypatch):
    """Its user allows a name, which its owner has resolved to this machine, and an address of another one."""
    named(monkeypatch, loop_example=["127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"], localhost=["127.0.0.1"])
    listed = [f"{way}{host}:{there}" for way in ("", "https://") for host in ("loop.example", "localhost", "192.0.2.1")]
    own = socket.gethostbyname(socket.gethostname())
    backend = make_backend("bubblewrap", hosts=listed)
    asked = tuple(dict.fromkeys(text.rpartition("://")[2] for text in listed))
    async with await backend.open(dataclasses.replace(SPEC, hosts=asked)) as sandbox:
        result = await sandbox.exec(python(REACH, str(there), own), timeout=30.0)
    backend.close()
    assert (result.code, result.stdout) == (0, b"[]\n"), result
    assert len(sandbox.egress._entries) == 14 * 3 and not any(entry["received"] for entry in sandbox.egress._entries)


async def test_hosts_that_the_user_has_not_allowed_are_refused_before_anything_runs(there):
    for backend, asked in (
        (make_backend("bubblewrap"), "a.example"),
        (made("bubblewrap", there), "b.example"),
        (made("bubblewrap", there), f"a.example:{there + 1}"),
    ):
        with pytest.raises(UserError, match=f"'{asked}', which is not allowed; allow it with --hosts"):
            await backend.open(SandboxSpec(hosts=(asked,)))
        assert backend._link is None
    for name in ("unsafe", "kubernetes", "e2b"):
        with pytest.raises(UserError, match=f"{name} has no proxy to reach 'a.example'"):
            make_backend(name, hosts=["a.example"])
    with pytest.raises(UserError, match="no proxy"):
        await make_backend("unsafe").open(SandboxSpec(hosts=("a.example",)))
    with pytest.raises(UserError, match="the e2b backend has no proxy"):
        check_remote_spec(SandboxSpec(hosts=("a.example",)), "e2b", "")


async def test_a_trajectory_has_what_its_tools_asked_and_each_episode_its_own(there, monkeypatch):
    named(monkeypatch, a_example=["127.0.0.2"])
    backend = made("bubblewrap", there)

    async def episode(host):
        url = f"http://{host}:{there}/"
        program = f"{PYTHON.executable} -I -S -c 'import sys; exec(sys.stdin.read())' {url} <<'END'\n{FETCH}\nEND"
        cell = f"import urllib.request; print(urllib.request.urlopen('{url}').status)"
        action = called_all([("shell", {"command": program}), ("python", {"code": cell})])
        asks = task(tools=("shell", "python"), metadata={"hosts": [host]})
        return await play(
            asks, ToolEnvironment(Services(lambda: backend)), lambda _, said: play_actions([action], said)
        )

    ended = await asyncio.gather(*map(episode, ("a.example", "127.0.0.2")))
    with pytest.raises(UserError, match=r"'b\.example', which is not allowed"):
        await episode("b.example")
    backend.close()
    for trajectory, host in zip(ended, ("a.example", "127.0.0.2"), strict=True):
        assert trajectory.status == "finished", trajectory.error
        log = trajectory.metadata[EGRESS]
        asked = [(entry["host"], entry["port"], entry["status"]) for entry in log["requests"]]
        assert asked == [(host, there, 200)] * 2 and (log["dropped"], log["sandboxes"]) == (0, 1)
        shown = [node.message["content"] for node in trajectory.nodes if node.message["role"] == "tool"]
        assert "hello" in shown[0] and "200" in shown[1], shown
    without = await play(task(), ToolEnvironment(Services(lambda: backend)), lambda _, said: play_actions([], said))
    assert EGRESS not in without.metadata
