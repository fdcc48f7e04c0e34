"""Starts bubblewrap: the only place where the spawner forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import fcntl
import json
import os
import resource
import signal

from k2jax.sandbox.arguments import command_arguments

_NUMBERS = {"--seccomp": 10, "--json-status-fd": 11, "--args": 12, "--block-fd": 13}
"""The descriptors that bubblewrap takes over, by option."""
_STATUS = _NUMBERS["--json-status-fd"]
_ABOVE = 20


@dataclasses.dataclass
class Child:
    """A bubblewrap that has just been started; the descriptors belong to whoever holds this record.

    Attributes:
        pid: the outer process; what it isolates runs below it.
        stdin: what to write its input to.
        stdout: where its output comes.
        stderr: where its error output comes.
        status: where it tells, in lines of JSON, the pid of the namespace's first process and the exit code.
        block: a byte here lets the command start; None where it starts at once.
    """

    pid: int
    stdin: int
    stdout: int
    stderr: int
    status: int
    block: int | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to start.

    Attributes:
        bwrap: the program.
        root: arguments for what is visible.
        argv: the command.
        cwd: its folder, inside.
        env: its environment.
        seccomp: the filter of system calls.
        user: user and group of the host that it runs as; None for this process's own.
        entrances: descriptors of control groups to enter.
        limits: limits of each process, by number of the resource; they hold for bubblewrap too.
        wait: whether the command waits for a byte in ``Child.block``.
    """

    bwrap: str
    root: Sequence[str]
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    seccomp: bytes
    user: int | None
    entrances: Sequence[int]
    limits: Mapping[int, int]
    wait: bool


def start(plan: Plan) -> Child:
    """Starts bubblewrap. What goes wrong after the fork comes as ``{"error": ...}`` through ``Child.status``.

    Raises:
        OSError: there are no processes or descriptors left.
        ValueError: an argument holds a character that no file name can.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        ends = {}
        for name in ("stdin", "stdout", "stderr", "status", *(["block"] if plan.wait else [])):
            reading, writing = os.pipe()
            inside, outside = (reading, writing) if name in ("stdin", "block") else (writing, reading)
            theirs.callback(os.close, inside)
            ours.callback(os.close, outside)
            ends[name] = (inside, outside)
        passed = {"--seccomp": _memory_file(plan.seccomp, theirs), "--json-status-fd": ends["status"][0]}
        if plan.wait:
            passed["--block-fd"] = ends["block"][0]
        numbers = {option: _NUMBERS[option] for option in passed}
        text = command_arguments(plan.root, plan.cwd, plan.env, numbers)
        passed["--args"] = _memory_file(text, theirs)
        argv = [os.fsencode(word) for word in ("bwrap", "--args", str(_NUMBERS["--args"]), "--", *plan.argv)]
        if any(b"\0" in word for word in argv):
            raise ValueError("an argument holds a null character")
        standard = [ends[name][0] for name in ("stdin", "stdout", "stderr")]
        pid = os.fork()
        if pid == 0:
            _become(plan, argv, standard, [(source, _NUMBERS[option]) for option, source in passed.items()])
        ours.pop_all()
    outside = {name: end for name, (_, end) in ends.items()}
    for descriptor in outside.values():
        os.set_blocking(descriptor, False)
    return Child(pid=pid, block=outside.pop("block", None), **outside)


def _memory_file(data: bytes, stack: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("k2jax", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _become(plan: Plan, argv: list[bytes], standard: list[int], passed: list[tuple[int, int]]) -> None:
    """Turns the forked process into bubblewrap; never returns."""
    status = next(source for source, target in passed if target == _STATUS)
    try:
        for entrance in plan.entrances:
            os.write(entrance, b"0")
        # First away from the numbers that are about to be used, which may be those of other descriptors.
        wanted = [*((source, target) for target, source in enumerate(standard)), *passed]
        moved = [(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _ABOVE), target) for source, target in wanted]
        status = next(source for source, target in moved if target == _STATUS)
        for source, target in moved:
            os.dup2(source, target)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
            signal.signal(number, signal.SIG_DFL)
        for number, limit in plan.limits.items():
            lowest = min(limit, resource.getrlimit(number)[1] % (1 << 64))  # no limit is -1
            resource.setrlimit(number, (lowest, lowest))
        os.umask(0o022)
        if plan.user is not None:
            _drop_to(plan.user)
        os.execve(plan.bwrap, argv, {})
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
