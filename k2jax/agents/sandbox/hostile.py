"""Tries attacks on a sandbox, and sees whether they were contained.

An attack is contained if it costs no more than its time limit, nothing of it is left, the machine outside is as it was,
and the sandbox's next command works.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from typing import Self

from k2jax.agents.sandbox.attacks import Attack
from k2jax.agents.sandbox.types import MEBI, Limits, Sandbox

LIMITS = Limits(memory=96 * MEBI, processes=24, disk=4 * MEBI, files=20_000)
"""Of a sandbox in which attacks run."""
_PATIENCE = 30.0


_AFTER = """
import os
def runs(n):
    return open(f'/proc/{n}/stat').read().rpartition(')')[2].split()[0] != 'Z'
pids = [n for n in os.listdir('/proc') if n.isdigit() and runs(n)]
open('/tmp/works', 'w').write('works')
assert len(pids) <= 4, pids
"""
"""The next command: it can write, and meets nobody but itself, the first process and a shell between them."""


class Outside:
    """Things of the host that an attack could reach; ``with`` makes them and takes them away.

    Attributes:
        arguments: for the attacks: a file with a secret, a TCP port, a UDP port, the name of an abstract socket, the
            path of a socket, and the number of a process.
        file: the file with the secret, alone in its folder.
        secret: what no sandbox may see; this process has it in a variable of its environment too.
    """

    def __enter__(self) -> Self:
        self.secret, name = secrets.token_hex(16), f"k2jax-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self.file = folder / "secret"
            self.file.write_text(self.secret)
            kinds = ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_UNIX,))
            self._sockets = [stack.enter_context(socket.socket(*kind)) for kind in (*kinds, (socket.AF_UNIX,))]
            tcp, udp, abstract, path = self._sockets
            addresses = (("127.0.0.1", 0), ("127.0.0.1", 0), f"\0{name}", str(folder / "socket"))
            for server, address in zip(self._sockets, addresses, strict=True):
                server.bind(address)
            for server in (tcp, abstract, path):
                server.listen()
            for server in self._sockets:
                server.setblocking(False)
            self._process = stack.enter_context(
                subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
            )
            stack.callback(self._process.kill)
            ports = [str(server.getsockname()[1]) for server in (tcp, udp)]
            self.arguments = [str(self.file), *ports, name, addresses[-1], str(self._process.pid)]
            os.environ["K2JAX_SECRET_OF_THE_HOST"] = self.secret
            stack.callback(os.environ.pop, "K2JAX_SECRET_OF_THE_HOST")
            self._before = self._state()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _state(self) -> tuple:
        stats = [path.stat() for path in (self.file.parent, self.file)]
        return (
            sorted(os.listdir(self.file.parent)),
            self.file.read_bytes(),
            [(s.st_mtime_ns, s.st_ctime_ns, s.st_mode, s.st_nlink) for s in stats],
        )

    def harm(self) -> str:
        """What has changed outside; empty for nothing."""
        if self._state() != self._before:
            return "a file of the host was changed"
        for server in self._sockets:
            with contextlib.suppress(BlockingIOError):
                if server.type == socket.SOCK_DGRAM:
                    server.recv(1)
                else:
                    server.accept()
                return "a socket of the host was reached"
        return "" if self._process.poll() is None else "a process of the host was ended"


async def attempt(
    attack: Attack, sandbox: Sandbox, outside: Outside, *, python: str, left: Callable[[], set[int]] = set
) -> str:
    """Runs an attack in a sandbox of ``LIMITS``.

    Args:
        attack: what to run.
        sandbox: where; it is used for nothing else.
        outside: what it may try to reach.
        python: the interpreter inside.
        left: processes of the sandbox that are left, as the host sees them.

    Returns:
        How it was not contained; empty where it was.

    Raises:
        SandboxError: the sandbox failed, which for an attack is a failure too.
    """
    begun = time.monotonic()
    result = await sandbox.exec([python, "-I", "-S", "-c", attack.code, *outside.arguments], timeout=attack.timeout)
    if time.monotonic() - begun > attack.timeout + _PATIENCE:
        return f"it took {time.monotonic() - begun:.0f} s"
    if left():
        return f"{len(left())} processes are left"
    if outside.secret.encode() in result.stdout + result.stderr:
        return "it saw the host's secret"
    if not attack.contained(result):
        return f"it ended with code {result.code} and said {(result.stdout + result.stderr)[-200:]!a}"
    if attack.then is not None:
        try:
            await attack.then(sandbox)
        except AssertionError as error:
            return str(error) or "a trap in its files worked"
    if harm := outside.harm():
        return harm
    after = await sandbox.exec([python, "-I", "-S", "-c", _AFTER])
    return "" if after.code == 0 else f"the next command ended with {after.code}: {after.stderr[-200:]!a}"
