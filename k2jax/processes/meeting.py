"""The first meeting of the processes of a run, before jax connects them.

jax ends a process without saying who is missing when not all come in time. So process 0 first listens at the
coordinator's port itself, tells everyone when all are there or who is not, and leaves the port to jax.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time

from k2jax.errors import UserError

_RETRY_SECONDS = 0.2


class ProcessLostError(RuntimeError):
    """Another process of the run does not answer: nothing that a user did wrong, and worth a restart."""


def meet(address: str, count: int, index: int, seconds: float) -> None:
    """Returns when all processes have come.

    Args:
        address: HOST:PORT of process 0.
        count: how many processes there are.
        index: of this process.
        seconds: how long to wait.

    Raises:
        UserError: two processes have one number, or they disagree about how many there are.
        ProcessLostError: not all came in time; it names them.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    if index == 0:
        _receive(int(port), count, deadline, seconds)
    else:
        _come((host.strip("[]"), int(port)), count, index, deadline, seconds)


def _receive(port: int, count: int, deadline: float, seconds: float) -> None:
    waiting: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen(port, deadline))
        problem = None
        while len(waiting) < count - 1 and problem is None:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection = stack.enter_context(server.accept()[0])
            except TimeoutError:
                break
            problem = _admit(connection, count, waiting)
        missing = [index for index in range(1, count) if index not in waiting]
        answer = {"user": problem}
        if missing and problem is None:
            names = ", ".join(f"process {index}" for index in missing)
            answer = {"lost": f"{names} of {count} did not come within {seconds:g} s; see why there, and start again"}
        for each in {*waiting.values(), *([connection] if problem else [])}:
            with contextlib.suppress(OSError):
                each.sendall(json.dumps(answer).encode() + b"\n")
    _raise(answer)


def _admit(connection: socket.socket, count: int, waiting: dict[int, socket.socket]) -> str | None:
    """Takes in one process; returns what is wrong with it."""
    connection.settimeout(5)
    try:
        said = json.loads(connection.makefile().readline())
        index, host, theirs = said["process"], said["host"], said["count"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not one of ours
    if theirs != count:
        return f"process {index} ({host}) has JAX_NUM_PROCESSES {theirs}, process 0 has {count}; give all the same"
    if index in waiting and _is_open(waiting[index]):
        return f"two processes have JAX_PROCESS_ID {index}, one of them on {host}; number them from 0 to {count - 1}"
    waiting[index] = connection
    return None


def _is_open(connection: socket.socket) -> bool:
    """Whether the process at the other end still waits; one that was started again comes twice."""
    return not select.select([connection], [], [], 0)[0]  # nothing more is said by it: what could be read is its end


def _come(address: tuple[str, int], count: int, index: int, deadline: float, seconds: float) -> None:
    said = json.dumps({"process": index, "host": socket.gethostname(), "count": count}).encode() + b"\n"
    while (left := deadline + 5 - time.monotonic()) > 0:  # process 0 says who is missing a little later
        with contextlib.suppress(OSError, ValueError), socket.create_connection(address, timeout=left) as connection:
            connection.sendall(said)
            answer = json.loads(connection.makefile().readline())
            return _raise(answer)
        time.sleep(_RETRY_SECONDS)
    raise ProcessLostError(
        f"process 0 does not answer at {address[0]}:{address[1]} within {seconds:g} s; is it started, and the address "
        "the same in every process?"
    )


def _listen(port: int, deadline: float) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    while True:
        try:
            return socket.create_server(("", port), family=family, backlog=4096, dualstack_ipv6=both)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"port {port} of JAX_COORDINATOR_ADDRESS cannot be used ({error.strerror}); choose another"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _raise(answer: dict) -> None:
    if answer.get("user"):
        raise UserError(answer["user"])
    if answer.get("lost"):
        raise ProcessLostError(answer["lost"])
