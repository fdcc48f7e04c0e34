"""Starts the program that isolates a command: the only place where the spawner forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import fcntl
import json
import os
import resource
import signal

from k2jax.agents.sandbox.counted_namespace import enter_counted_namespace
from k2jax.agents.sandbox.launcher import Invocation
from k2jax.agents.sandbox.mount_namespace import enter_mounts

_ABOVE = 20


@dataclasses.dataclass
class Child:
    """A command that has just been started; the descriptors belong to whoever holds this record.

    Attributes:
        pid: the isolating program; what it isolates runs below it.
        stdin: what to write its input to; None where that is a connection.
        stdout: where its output comes; None where that is a connection.
        stderr: where its error output comes.
        status: where it tells what it does; see ``Launcher.told``.
        block: a byte here lets the command start; None where it starts at once.
    """

    pid: int
    stdin: int | None
    stdout: int | None
    stderr: int
    status: int
    block: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to start.

    Attributes:
        program: path of the isolating program.
        invocation: how it is called.
        namespace: descriptor of the mount namespace in which it starts.
        user: user and group of the host that it runs as; None for this process's own.
        entrances: descriptors of control groups to enter.
        limits: limits of each process, by number of the resource; they hold for the isolating program too.
        connection: descriptor of a socket that is input and output both; None for pipes.
    """

    program: str
    invocation: Invocation
    namespace: int
    user: int | None
    entrances: Sequence[int]
    limits: Mapping[int, int]
    connection: int | None = None


def start(plan: Plan) -> Child:
    """Starts a command. What goes wrong after the fork comes as ``{"error": ...}`` through ``Child.status``.

    Raises:
        OSError: there are no processes or descriptors left.
        ValueError: an argument holds a character that no file name can.
    """
    invocation = plan.invocation
    if any(b"\0" in word for word in invocation.argv):
        raise ValueError("an argument holds a null character")
    pipes = [*(["stdin", "stdout"] if plan.connection is None else []), "stderr", "status"]
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        ends = {}
        for name in (*pipes, *(["block"] if invocation.block is not None else [])):
            reading, writing = os.pipe()
            inside, outside = (reading, writing) if name in ("stdin", "block") else (writing, reading)
            theirs.callback(os.close, inside)
            ours.callback(os.close, outside)
            ends[name] = (inside, outside)
        passed = [(ends["status"][0], invocation.status)]
        if invocation.block is not None:
            passed.append((ends["block"][0], invocation.block))
        passed += [(memory_file(data, theirs), number) for number, data in invocation.files.items()]
        standard = [plan.connection if name not in ends else ends[name][0] for name in ("stdin", "stdout", "stderr")]
        pid = os.fork()
        if pid == 0:
            _become(plan, standard, passed)
        ours.pop_all()
    outside = {name: end for name, (_, end) in ends.items()}
    for descriptor in outside.values():
        os.set_blocking(descriptor, False)
    return Child(pid=pid, **{name: outside.get(name) for name in ("stdin", "stdout", "stderr", "status", "block")})


def memory_file(data: bytes, stack: contextlib.ExitStack) -> int:
    """Descriptor of a file in memory, which the stack closes."""
    descriptor = os.memfd_create("k2jax", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _become(plan: Plan, standard: list[int], passed: list[tuple[int, int]]) -> None:
    """Turns the forked process into the isolating program; never returns."""
    number_of_status = plan.invocation.status
    status = next(source for source, target in passed if target == number_of_status)
    try:
        enter_mounts(plan.namespace)  # before its number may become another descriptor's
        for entrance in plan.entrances:
            os.write(entrance, b"0")
        # First away from the numbers that are about to be used, which may be those of other descriptors.
        wanted = [*((source, target) for target, source in enumerate(standard)), *passed]
        moved = [(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _ABOVE), target) for source, target in wanted]
        status = next(source for source, target in moved if target == number_of_status)
        for source, target in moved:
            os.dup2(source, target)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
            signal.signal(number, signal.SIG_DFL)
        if plan.user is not None:
            _drop_to(plan.user)
        enter_counted_namespace()
        for number, limit in plan.limits.items():  # last: this fork may hold more descriptors than a command may
            lowest = min(limit, resource.getrlimit(number)[1] % (1 << 64))  # no limit is -1
            resource.setrlimit(number, (lowest, lowest))
        os.execve(plan.program, plan.invocation.argv, {})
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(status, json.dumps({"error": str(error), "errno": getattr(error, "errno", None)}).encode())
    finally:
        os._exit(255)


def set_limits(pid: int, limits: Mapping[int, int], user: int | None) -> None:
    """Sets limits of another process, by number of the resource.

    Args:
        pid: the process, which runs as ``user``.
        limits: the new limits, no higher than they are.
        user: None for this process's own. Root may be without the right to limit others, so a child of that user
            does it.
    """
    if user is None:
        for number, limit in limits.items():
            resource.prlimit(pid, number, (limit, limit))
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _drop_to(user)
            set_limits(pid, limits, None)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1] and os.path.exists(f"/proc/{pid}"):
        raise OSError("the limits of a command could not be set")


def _drop_to(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
