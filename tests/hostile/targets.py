"""Servers as an attacker sees them: connections, heads of requests, statuses; and the commands that start real ones."""

from concurrent.futures import ThreadPoolExecutor
import contextlib
import os
from pathlib import Path
import re
import socket
import subprocess
import sys
import time
from typing import Any

import httpx

from tests.agents.gateway.scripted import TOKENIZER
from tests.hostile.attack import Target
from tests.hostile.probe import VARIABLE, Channel
from tests.serve import folder as checkpoints

LONGEST_BODY = 1 << 25
"""That the servers of models are told to take [bytes]: more than by default."""
ROLLOUTS = 4
_PATIENCE = 300.0
_RECOVERY = 45.0
"""Time of a body that stopped arriving, and then some [s]; see docs/security.md."""
_MODEL = ("--slots=2", "--max_length=512", f"--max_body_bytes={LONGEST_BODY}")


class HttpTarget:
    """A server of models.

    Args:
        port: on this machine.
        accesses: for each rollout the beginning of its paths and its key.
        socket_path: of a Unix socket that serves the first rollout; empty for none.
    """

    def __init__(self, port: int, accesses: list[dict[str, Any]], socket_path: str = ""):
        self.port, self.rollouts, self.socket = port, accesses, socket_path

    def connect(self, unix: bool = False) -> socket.socket:
        """A new connection."""
        if not unix:
            return socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(self.socket)
        return connection

    def head(self, rollout: int, path: str = "chat/completions", **headers: Any) -> bytes:
        """The head of a request, with further headers or others in the place of the usual ones."""
        access = self.rollouts[rollout]
        lines = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {access['key']}",
            "Content-Type": "application/json",
            **headers,
        }
        text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return f"POST {access['path']}/v1/{path} HTTP/1.1\r\n{text}\r\n".encode()

    def post(self, rollout: int, body: bytes, path: str = "chat/completions", unix: bool = False, **headers) -> int:
        """The status of an answer; 0 where the connection ended without one."""
        with contextlib.suppress(OSError), contextlib.closing(self.connect(unix)) as connection:
            connection.sendall(self.head(rollout, path, Content_Length=len(body), **headers) + body)
            return status_of(connection)
        return 0


def status_of(connection: socket.socket) -> int:
    """The status of the answer that comes over a connection; 0 where none does."""
    with contextlib.suppress(OSError):
        line = connection.recv(4096).split(b" ", 2)
        return int(line[1]) if len(line) == 3 else 0
    return 0


def at_once(count, run):
    """What a function returns for each of so many numbers, in as many threads."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


class Server(HttpTarget):
    """A command that serves, in a process of its own with a probe; ``close`` ends it.

    Attributes:
        key: of an operator, or of the server of environments.
        folder: its workdir.
    """

    def __init__(self, target: Target, folder: Path):
        self.target, self.folder = target, folder
        module, arguments = _command(target, folder)
        here, there = socket.socketpair()
        environment = os.environ | {VARIABLE: str(there.fileno()), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "tests.hostile.served", module, "--port=0", *arguments]
        with there:
            self.process = subprocess.Popen(
                command, env=environment, pass_fds=[there.fileno()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True,
            )  # fmt: skip
        here.settimeout(_PATIENCE)
        self._channel, self._socket = Channel(here), here
        line = self.process.stdout.readline()
        port = int(re.search(r"(?:http|ws)://[\w.]+:(\d+)", line)[1])
        super().__init__(port, [{"path": "", "key": "x"}] * ROLLOUTS)
        self.key = next((file.read_text().strip() for file in folder.glob("*.key")), "")
        if target == "gateway":
            self.rollouts = [self._opened(number) for number in range(ROLLOUTS)]
        if target != "environments":
            self.serves()

    def serves(self) -> bool:
        """Whether an ordinary request is answered, as soon as what was sent before has had its time."""
        end = time.monotonic() + _RECOVERY
        while self.target != "environments" and self.post(3, CHAT) != 200:
            if time.monotonic() > end:
                return False
            time.sleep(0.5)
        return True

    def begin(self) -> None:
        """Lets the measurement begin."""
        self._ask("begin")

    def measured(self) -> dict[str, float]:
        """See ``Probe.measured``."""
        return self._ask("measure")

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self._socket.close()

    def _ask(self, words: str) -> dict[str, float]:
        self._channel.send(words)
        return self._channel.receive()

    def _opened(self, number: int) -> dict[str, Any]:
        url, body = f"http://127.0.0.1:{self.port}/rollouts", {"task": "t", "name": f"r{number}"}
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.post(url, json=body | {"sampling": {"max_tokens": 4}}, headers=headers, timeout=60).json()


CHAT = b'{"model":"x","max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}'
"""An ordinary request."""


def _command(target: Target, folder: Path) -> tuple[str, list[str]]:
    """A server's module, and its arguments."""
    if target == "environments":
        return "k2jax.env.serve", [f"--workdir={folder}"]
    checkpoint = checkpoints.write(folder / "tiny", TOKENIZER)
    if target == "gateway":
        return "k2jax.gateway", [f"--checkpoint={checkpoint}", f"--workdir={folder}", *_MODEL]
    return "k2jax.serve", [f"--checkpoint={checkpoint}", "--model_name=x", *_MODEL]


def settled(seconds: float = 0.2) -> None:
    """Waits until what a server has begun is done."""
    time.sleep(seconds)
