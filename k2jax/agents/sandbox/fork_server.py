"""A sandbox's fork server, as the spawner holds it: commands that cost no start of an isolating program each.

The program itself is ``fork_server_program``, in a bubblewrap of its own. It lives as long as its sandbox, is in the
sandbox's control group, and starts commands from there.
"""

from __future__ import annotations

import base64
import collections
from collections.abc import Callable
import contextlib
import errno
import json
import os
from pathlib import Path
import selectors
import signal
import socket
import time
from typing import Any

from k2jax.agents.sandbox import fork_server_program, seccomp, wire
from k2jax.agents.sandbox.arguments import SERVER_FOLDER
from k2jax.agents.sandbox.child_process import memory_file
from k2jax.agents.sandbox.command_streams import CommandStreams
from k2jax.agents.sandbox.running_command import CommandEnd

_PROGRAM = Path(fork_server_program.__file__).read_text(encoding="utf-8")
_PATIENCE = 2.0
"""How long a command may take to end that is killed, before its server is killed too [s]."""
_KILLED = 128 + signal.SIGKILL
_MOST_PACKET = 256


def server_record(python: list[str]) -> dict[str, Any]:
    """How a fork server is started, as the record of a command.

    Args:
        python: the command of the Python that it is shown.
    """
    filter_text = base64.b64encode(seccomp.program()).decode()
    argv = [*python, "-I", "-S", "-c", _PROGRAM, SERVER_FOLDER, filter_text]
    return {"argv": argv, "cwd": "/", "env": {}, "first": True, "unfiltered": True}


class ForkServer:
    """The connection to a running fork server.

    Args:
        selector: calls what is registered with it.
        connection: a socket of packets to the server; closed by ``gone``.
        end: kills the server.
        ready: called once, when it can start commands.

    Attributes:
        waiting: requests that came before it was ready.
        is_ready: whether it can start commands.
        is_ending: whether it is being killed.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connection: socket.socket,
        *,
        end: Callable[[], None],
        ready: Callable[[], None],
    ):
        self.waiting: list[wire.Message] = []
        self.is_ready = self.is_ending = False
        self._is_heard = True
        self._selector, self._connection, self._ready, self._end = selector, connection, ready, end
        self._commands: dict[int, ForkedCommand] = {}
        self._unsent: collections.deque[tuple[bytes, int]] = collections.deque()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # a few packets: what waits here can be ended
        selector.register(connection, selectors.EVENT_READ, self._on_event)

    def run(self, command: ForkedCommand) -> None:
        """Starts a command."""
        self._commands[command.number] = command
        self._unsent.append((b"R", command.number))
        if len(self._unsent) == 1:
            self._send()

    def kill(self, number: int) -> None:
        """Kills a command, before others begin; one that the server does not know yet ends without it."""
        start = (b"R", number)
        if start in self._unsent:
            self._unsent.remove(start)
            self._unsent.appendleft((b"", number))  # the queue is full, so this is seen from the loop
            return
        self._unsent.appendleft((b"K", number))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        """Sends what the server has room for; the rest when it has more."""
        try:
            while self._unsent:
                kind, number = self._unsent[0]
                if kind:
                    inside = self._commands[number].inside if kind == b"R" else []
                    socket.send_fds(self._connection, [b"%s%d" % (kind, number)], inside)
                self._unsent.popleft()
                if kind == b"R":
                    self._commands[number].close_inside()
                elif not kind:
                    self._commands.pop(number).ended(_KILLED)
        except BlockingIOError:
            pass
        except OSError:  # it has ended, and what it runs ends with it
            self._unsent.clear()
            self.end()
        if self._is_heard:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(self._connection, events, self._on_event)

    def end(self) -> None:
        """Kills the server and all that it runs; ``gone`` is to follow."""
        self.is_ending = True
        self._end()

    def gone(self) -> None:
        """Ends the commands of a server that has ended."""
        if self._is_heard:
            self._selector.unregister(self._connection)
            self._is_heard = False
        self._connection.close()
        while self._commands:
            self._commands.popitem()[1].lost()

    def _on_event(self) -> None:
        if self._unsent:
            self._send()
        try:
            packet = self._connection.recv(_MOST_PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:  # its end follows
            self._selector.unregister(self._connection)
            self._is_heard = False
            return
        kind, numbers = packet[:1], list(map(int, packet[1:].split()))
        if kind == b"H":
            self.is_ready = True
            self._ready()
        elif kind == b"F":
            self._commands[numbers[0]].error = numbers[1]
        else:
            self._commands.pop(numbers[0]).ended(numbers[1])


class ForkedCommand:
    """One command of a fork server; it is to the spawner what a ``RunningCommand`` is.

    Args:
        selector: calls the functions that are registered with it.
        message: its request; see ``SandboxSpawner``.
        server: what runs it.
        memory_kills: says how many processes of its sandbox have been killed for memory so far.
        done: called once, at the end, with the record of the result and both outputs.

    Attributes:
        number: of the request.
        inside: descriptors for the server: standard input, output and error, and the request.
        error: number of the error with which the server could not start it; 0 for none.
        pids: none of its processes is a child of the spawner.
        deadline: the moment of its time limit, on the monotonic clock [s].
    """

    pids: tuple[int, ...] = ()

    def __init__(
        self,
        selector: selectors.BaseSelector,
        message: wire.Message,
        server: ForkServer,
        *,
        memory_kills: Callable[[], int],
        done: Callable[[dict[str, Any], bytes], None],
    ):
        record = message.record
        self._server, self._memory_kills, self._done = server, memory_kills, done
        self.number, self.error = record["request"], 0
        self._begun, self._kills = time.monotonic(), memory_kills()
        self.deadline = self._begun + record["timeout"]
        self._timed_out = self._is_killed = False
        request = {name: record[name] for name in ("argv", "cwd", "env")}
        with contextlib.ExitStack() as opened:
            pipes = []
            for _ in range(3):
                pipes.append(os.pipe())
                for descriptor in pipes[-1]:
                    opened.callback(os.close, descriptor)
            self.inside = [pipes[0][0], pipes[1][1], pipes[2][1], memory_file(json.dumps(request).encode(), opened)]
            opened.pop_all()
        outside = [pipes[0][1], pipes[1][0], pipes[2][0]]
        for descriptor in outside:
            os.set_blocking(descriptor, False)
        stdin, *outputs = outside
        self._streams = CommandStreams(selector, stdin, outputs, data=message.payload, limit=record["output_limit"])

    def close_inside(self) -> None:
        """Closes the server's descriptors, which it has by now or will never have."""
        for descriptor in self.inside:
            os.close(descriptor)
        self.inside = []

    def expire(self) -> None:
        """Ends the command at its time limit; or the server, where that does not end it."""
        if self._is_killed:
            self.deadline = float("inf")
            self._server.end()
            return
        self._timed_out = True
        self.kill()

    def kill(self) -> None:
        """Ends the command and everything that it has started; ``done`` follows."""
        if not self._is_killed:
            self._is_killed = True
            self.deadline = time.monotonic() + _PATIENCE
            self._server.kill(self.number)

    def ended(self, code: int) -> None:
        """Nothing of the command is left."""
        self.close_inside()
        seconds = time.monotonic() - self._begun
        stdout, stderr = self._streams.finish()
        failure = None
        if self.error:
            failure = f"a command could not be started, or its sandbox ended under it: {os.strerror(self.error)}"
        end = CommandEnd(code, seconds, self._timed_out, self._memory_kills() > self._kills)
        record = end.record(failure, len(stdout), self._streams.truncated)
        self._done(record, stdout + stderr)

    def lost(self) -> None:
        """Its server has ended and took it along: by its time limit, for want of memory, or for no good reason."""
        if not self._is_killed and self._memory_kills() == self._kills:
            self.error = errno.EOWNERDEAD
        self.ended(_KILLED)
