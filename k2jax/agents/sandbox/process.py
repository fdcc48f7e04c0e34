"""A program that lives in a sandbox beside the commands: both directions of one socket, and its end."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
import contextlib
import socket

from k2jax.agents.sandbox.spawner_client import Answer, Link
from k2jax.agents.sandbox.types import ExecResult, SandboxError


class SandboxProcess:
    """One running program; ``kill`` or the sandbox's ``close`` ends it and everything that it has started.

    Attributes:
        connection: its input and output, without blocking; closed by ``kill`` unless ``take`` gave it away.
    """

    def __init__(self, link: Link, number: int, descriptor: int, ended: Future[Answer]):
        """Takes over a program that the spawner has started, and the descriptor of its socket."""
        self.connection = socket.socket(fileno=descriptor)
        self.connection.setblocking(False)
        self._link, self._number, self._ended = link, number, ended
        self._taken = False

    def take(self) -> socket.socket:
        """The connection, which the caller closes from now on."""
        self._taken = True
        return self.connection

    async def kill(self) -> None:
        """Ends the program and waits until nothing of it is left; further calls do nothing."""
        if not self._taken:
            self.connection.close()
        if not self._ended.done():
            with contextlib.suppress(SandboxError):
                self._link.ask("kill", target=self._number)
        with contextlib.suppress(SandboxError):
            await self.wait()

    async def wait(self) -> ExecResult:
        """How it ended, with the beginning of its error output; its output went through the connection.

        Raises:
            SandboxError: the sandbox failed.
        """
        answer = await asyncio.shield(asyncio.wrap_future(self._ended))
        return result_of(answer, b"", answer.payload)


def result_of(ended: Answer, stdout: bytes, stderr: bytes) -> ExecResult:
    """How a command ended, as the spawner tells it, with its outputs."""
    names = ("code", "seconds", "timed_out", "out_of_memory", "truncated")
    return ExecResult(stdout=stdout, stderr=stderr, **{name: ended.record[name] for name in names})
