"""The rendezvous of a run's processes, before jax connects them.

If some processes do not start in time, jax ends the others without naming the missing ones. So process 0 first listens
at the coordinator's port itself, tells every process that all have arrived or which are missing, and then leaves the
port to jax.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json

VERSION = 1
"""Of the greeting, and of what the processes of a run say to each other behind it."""
_RETRY_SECONDS = 0.2
_GREETING_SECONDS = 5.0  # longest time in which a connected process sends its greeting
_LONGEST_MESSAGE, _MAX_VALUES = 1 << 20, 16  # bytes of a message, of which a verdict may name many processes
_VERDICT_SECONDS = 5.0  # time after the deadline in which process 0 reports the missing processes


class ProcessLostError(RuntimeError):
    """Another process of the run does not respond. This is not the user's mistake, and a restart can help."""


def rendezvous(address: str, count: int, index: int, seconds: float) -> None:
    """Waits until all processes have arrived.

    Args:
        address: HOST:PORT of process 0.
        count: number of processes.
        index: index of this process.
        seconds: how long to wait [s].

    Raises:
        UserError: two processes have the same index, or their counts or their versions of k2jax differ.
        ProcessLostError: some processes did not arrive in time; the message names them.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    if index == 0:
        _host(int(port), count, deadline, seconds)
    else:
        greeting = {"process": index, "host": socket.gethostname(), "count": count, "version": VERSION}
        _attend((host.strip("[]"), int(port)), greeting, deadline, seconds)


def _host(port: int, count: int, deadline: float, seconds: float) -> None:
    """Receives the greetings of all other processes, and sends each the same verdict."""
    arrived: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen(port, deadline))
        mistake = None
        while len(arrived) < count - 1 and mistake is None:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection = stack.enter_context(server.accept()[0])
            except TimeoutError:
                break
            mistake = _admit(connection, count, arrived)
        missing = [index for index in range(1, count) if index not in arrived]
        verdict = {"mistake": mistake, "version": VERSION}
        if missing and mistake is None:
            names = ", ".join(f"process {index}" for index in missing)
            message = f"{names} of {count} did not start within {seconds:g} s; see why in their logs, and restart all"
            verdict |= {"lost": message}
        for recipient in {*arrived.values(), *([connection] if mistake else [])}:
            with contextlib.suppress(OSError):
                recipient.sendall(json.dumps(verdict).encode() + b"\n")
    _raise_verdict(verdict)


def _admit(connection: socket.socket, count: int, arrived: dict[int, socket.socket]) -> str | None:
    """Adds a process to ``arrived``; returns the user's mistake, if there is one."""
    try:
        greeting = _read_message(connection, _GREETING_SECONDS)
        index, host, its_count = int(greeting["process"]), abbreviate(greeting["host"]), int(greeting["count"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None  # the connection is not from a process of a run
    if index < 1:
        return None
    if greeting.get("version") != VERSION:
        return _other_version(f"process {index} ({host})", greeting, "process 0")
    if its_count != count:
        return (
            f"process {index} ({host}) has JAX_NUM_PROCESSES {its_count}, process 0 has {count}; "
            "set the same number in every process"
        )
    if index >= count:  # a process of a run has said so itself
        return None
    if index in arrived and _is_open(arrived[index]):
        return f"two processes have JAX_PROCESS_ID {index}, one of them on {host}; number them from 0 to {count - 1}"
    arrived[index] = connection
    return None


def _other_version(who: str, message: dict[str, Any], other: str) -> str:
    its = message["version"] if isinstance(message.get("version"), int) else "none"
    return (
        f"{who} speaks version {its} of the rendezvous, and {other} {VERSION}; install the same k2jax for every process"
    )


def _is_open(connection: socket.socket) -> bool:
    """Whether the process at the other end still waits; a restarted process connects a second time.

    A process sends nothing after its greeting, so a readable socket is one that the other end has closed.
    """
    return not select.select([connection], [], [], 0)[0]


def _attend(address: tuple[str, int], greeting: dict[str, Any], deadline: float, seconds: float) -> None:
    """Sends the greeting to process 0, and waits for its verdict."""
    line = json.dumps(greeting).encode() + b"\n"
    while (remaining := deadline + _VERDICT_SECONDS - time.monotonic()) > 0:
        with contextlib.suppress(OSError, ValueError), socket.create_connection(address, timeout=remaining) as peer:
            peer.sendall(line)
            verdict = _read_message(peer, remaining)
            if verdict.get("version") != VERSION:
                raise UserError(_other_version("process 0", verdict, "this process"))
            return _raise_verdict(verdict)
        time.sleep(_RETRY_SECONDS)
    raise ProcessLostError(
        f"process 0 does not respond at {address[0]}:{address[1]} within {seconds:g} s; check that it has started, and "
        "that JAX_COORDINATOR_ADDRESS is the same in every process"
    )


def _read_message(connection: socket.socket, seconds: float) -> dict[str, Any]:
    """A line of JSON from whoever has connected; OSError or ValueError where none comes in time."""
    line, deadline = b"", time.monotonic() + seconds
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(_LONGEST_MESSAGE - len(line))
        if not part or time.monotonic() > deadline:
            raise ValueError("no whole line has come")
        line += part
    message = parse_bounded_json(line, _MAX_VALUES)
    if not isinstance(message, dict):
        raise ValueError("the line is no JSON object")
    return message


def _listen(port: int, deadline: float) -> socket.socket:
    """A listening socket; retries until the deadline, because an earlier run may hold the port for a while."""
    dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack else socket.AF_INET
    while True:
        try:
            return socket.create_server(("", port), family=family, backlog=4096, dualstack_ipv6=dual_stack)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"port {port} of JAX_COORDINATOR_ADDRESS cannot be used ({error.strerror}); choose another"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _raise_verdict(verdict: dict[str, Any]) -> None:
    if verdict.get("mistake"):
        raise UserError(verdict["mistake"])
    if verdict.get("lost"):
        raise ProcessLostError(verdict["lost"])
