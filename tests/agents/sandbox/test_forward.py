"""One server of the host is in reach of a command, as if it listened inside; nothing else is."""

import asyncio
import dataclasses
import os
import tempfile

import pytest

from k2jax.agents.sandbox.forward import forwarded
from tests.agents.sandbox.backends import NAMESPACES, SPEC, in_sandbox, python

every_backend = pytest.mark.parametrize("name", NAMESPACES, indirect=True)


def with_server(name, answer, use):
    """Serves on a Unix socket, and gives ``use`` a sandbox and the socket's path."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = f"{folder}/socket"

        async def run(sandbox):
            server = await asyncio.start_unix_server(answer, path)
            os.chmod(path, 0o666)
            async with server:
                return await use(sandbox, path)

        os.chmod(folder, 0o755)
        return in_sandbox(name, run, dataclasses.replace(SPEC, read_only=(*SPEC.read_only, folder)))


async def echo_backwards(reader, writer):
    data = await reader.read()
    writer.write(data[::-1])
    await writer.drain()
    writer.close()


CLIENT = """
import socket, sys
def ask(data):
    with socket.create_connection(('127.0.0.1', 8123), 5) as s:
        s.sendall(data); s.shutdown(socket.SHUT_WR)
        return b''.join(iter(lambda: s.recv(65536), b''))
several = [socket.create_connection(('127.0.0.1', 8123), 5) for _ in range(20)]
big = bytes(range(256)) * 12000
print(ask(b'abc'), ask(b''), ask(big) == big[::-1], len(several))
for port in (80, 8124):
    try: socket.create_connection(('127.0.0.1', port), 1); print('reached', port)
    except OSError: pass
sys.exit(7)
"""


@every_backend
def test_bytes_pass_both_ways_with_their_ends_and_the_commands_own_code_remains(name):
    async def use(sandbox, path):
        first = await sandbox.exec(forwarded(python(CLIENT), path, port=8123))
        alone = await sandbox.exec(python(CLIENT))
        return first, alone

    first, alone = with_server(name, echo_backwards, use)
    assert (first.code, first.stdout, first.stderr) == (7, b"b'cba' b'' True 20\n", b"")
    assert alone.code == 1 and b"ConnectionRefused" in alone.stderr


def test_a_server_that_has_gone_ends_connections_and_nothing_else():
    async def use(sandbox, path):
        os.unlink(path)
        code = "import socket; print(socket.create_connection(('127.0.0.1', 8123), 5).recv(1))"
        gone = await sandbox.exec(forwarded(python(code), path, port=8123))
        missing = await sandbox.exec(forwarded(["no-such-program"], path, port=8123))
        return gone, missing

    gone, missing = with_server("bubblewrap", echo_backwards, use)
    assert (gone.code, gone.stdout) == (0, b"b''\n")
    assert missing.code == 127 and b"no-such-program" in missing.stderr
