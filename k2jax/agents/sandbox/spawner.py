"""The spawner: a small process of one thread that starts and ends everything that runs in bubblewrap.

It exists because forking a program with a model in it is slow, because bubblewrap ends with the thread that started it,
and because the sandboxes' files need a mount namespace. It serves one program over a socket (see wire.py) and ends with
it: then the kernel ends its sandboxes and deletes their files. It imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import os
from pathlib import Path
import resource
import selectors
import signal
import socket
import time
from typing import Any

from k2jax.agents.sandbox import cgroup, wire
from k2jax.agents.sandbox.arguments import BubblewrapLauncher
from k2jax.agents.sandbox.box import Box
from k2jax.agents.sandbox.child_process import Child, Plan, set_limits, start
from k2jax.agents.sandbox.launcher import Launcher
from k2jax.agents.sandbox.mount_namespace import SandboxStage, adopt_orphans
from k2jax.agents.sandbox.nsjail_config import NsjailLauncher
from k2jax.agents.sandbox.running_command import RunningCommand, parent_of
from k2jax.agents.sandbox.warden import start_warden

LAUNCHERS: dict[str, type[Launcher]] = {"bubblewrap": BubblewrapLauncher, "nsjail": NsjailLauncher}
_KEPT_ERRORS = 1 << 14
"""Bytes of error output that are kept of a program that goes on."""
_ORPHANS_END = 0.02
"""How long an orphan that was killed is waited for before others are served, and how often the loop looks again [s]."""
_LONGEST_WAIT = 3600.0
"""How long the loop waits for anything at most: a time limit may be longer than what the kernel can wait for [s]."""
_PATIENCE = 2.0
"""How long a control group may take to become empty after its processes have ended [s]."""


class SandboxSpawner:
    """Answers requests until the program that makes them ends.

    Every request has a ``request``, its number, which its answer repeats; a ``failure`` in an answer is a message.
    Kinds: ``open`` (limits, read_only, user; image, workdir, deferred) gives a sandbox's number and a descriptor of its
    files, and mounts its image, which with ``deferred`` waits for ``mount`` (box); ``exec`` (box, argv, cwd, env,
    timeout, output_limit, bare; the payload is stdin) gives a result whose payload is both outputs, and ``bare`` shows
    the host's programs and what was written to the image; ``start`` (box, argv, cwd, env, first) gives the descriptor
    of a socket to a program that goes on, and at its end a result whose payload is its error output; ``kill`` (target)
    ends either early and has no answer; ``close`` (box).

    Args:
        connection: a Unix socket.
        stage: where files are.
        program: path of the isolating program.
        launcher: how it is called.
        groups: whether to use control groups.
    """

    def __init__(
        self, connection: socket.socket, stage: SandboxStage, program: str, *, launcher: Launcher, groups: bool
    ):
        self._connection, self._stage = connection, stage
        self._program, self._launcher, self._mark = program, launcher, os.fsencode(stage.path.name)
        self._groups = cgroup.GroupPool(cgroup.hold(cgroup.find()) if groups else {}, f"{os.getpid()}-")
        stage.forget("/sys")
        self._selector = selectors.DefaultSelector()
        self._decoder = wire.Decoder()
        self._boxes: dict[int, Box] = {}
        self._jobs: dict[int, RunningCommand] = {}
        self._timed: dict[int, RunningCommand] = {}
        self._has_orphans = self._ended = False

    def run(self) -> None:
        """Serves; returns when the connection ends, with nothing left running."""
        self._selector.register(self._connection, selectors.EVENT_READ, self._on_request)
        parent = os.pidfd_open(os.getppid())  # a fork of it may hold the connection open
        self._selector.register(parent, selectors.EVENT_READ, self._on_end)
        while not self._ended:
            self._turn()
        for job in list(self._jobs.values()):
            job.kill()
        end = time.monotonic() + _PATIENCE
        while self._jobs and time.monotonic() < end:
            self._turn(0.1)
        for box in self._boxes.values():
            box.remove()
        self._groups.remove()

    def _turn(self, wait: float = _LONGEST_WAIT) -> None:
        nearest = min((job.deadline for job in self._timed.values()), default=float("inf"))
        wait = min(wait, max(nearest - time.monotonic(), 0.0), _ORPHANS_END if self._has_orphans else wait)
        for key, _ in self._selector.select(wait):
            if self._selector.get_map().get(key.fd) == key:  # not closed by one before it
                key.data()
        now = time.monotonic()
        for job in list(self._timed.values()):
            if job.deadline <= now:
                job.expire()
        if self._has_orphans:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """Ends children that belong to no command.

        A command that is killed before its first process is known leaves that to this process, which adopts it.
        """
        known = {pid for job in self._jobs.values() for pid in job.pids}
        self._has_orphans = False
        for pid in _children() - known:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + _ORPHANS_END
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(pid, os.WNOHANG)[0]:
                    if time.monotonic() > end:
                        self._has_orphans = True
                        break
                    time.sleep(0.001)

    def _on_end(self) -> None:
        self._ended = True

    def _on_request(self) -> None:
        try:
            data, _ = wire.receive(self._connection)
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(self._connection)
            self._ended = True
            return
        for message in self._decoder.feed(data):
            try:
                getattr(self, f"_{message.record['kind']}")(message)
            except (OSError, ValueError, KeyError) as error:
                self._answer(message.record["request"], {"failure": f"{type(error).__name__}: {error}"})

    def _answer(self, request: int, record: dict[str, Any], payload: bytes = b"", descriptors: tuple = ()) -> None:
        data = wire.encode(wire.Message({"request": request} | record, payload))
        try:
            if descriptors:
                data = data[socket.send_fds(self._connection, [data], descriptors) :]
            self._connection.sendall(data)
        except OSError:
            self._ended = True

    def _open(self, message: wire.Message) -> None:
        number = message.record["request"]
        box = Box(self._stage, self._launcher, self._groups, str(number), message.record)
        self._boxes[number] = box
        try:
            self._answer(number, {"box": number}, descriptors=(box.files.root,))
        finally:
            os.close(box.files.root)

    def _exec(self, message: wire.Message) -> None:
        child, late = self._launch(message.record)
        self._watch(message, child, late, timeout=message.record["timeout"], limit=message.record["output_limit"])

    def _start(self, message: wire.Message) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            child, late = self._launch(message.record, theirs.fileno())
            self._answer(message.record["request"], {"started": True}, descriptors=(ours.fileno(),))
        self._watch(message, child, late, timeout=float("inf"), limit=_KEPT_ERRORS)

    def _launch(self, record: dict[str, Any], connection: int | None = None) -> tuple[Child, dict[int, int]]:
        """Starts a command; also gives the limits that it waits for."""
        box = self._boxes[record["box"]]
        late = box.limits_without_groups()
        invocation = self._launcher.invoke(box.bare if record.get("bare") else box.root, record, late)
        entrances = box.group.entrances()
        plan = Plan(
            program=self._program,
            invocation=invocation._replace(argv=[self._mark, *invocation.argv[1:]]),
            namespace=box.files.namespace,
            user=self._stage.user,
            entrances=entrances,
            limits=box.limits_of_a_process(),
            connection=connection,
        )
        try:
            return start(plan), late
        finally:
            for entrance in entrances:
                os.close(entrance)

    def _watch(self, message: wire.Message, child: Child, late: dict[int, int], *, timeout: float, limit: int) -> None:
        request, box = message.record["request"], self._boxes[message.record["box"]]

        def done(result: dict[str, Any], outputs: bytes) -> None:
            del self._jobs[request]
            self._timed.pop(request, None)
            if len(job.pids) == 1:
                self._end_orphans()
            box.jobs.discard(job)
            self._answer(request, result, outputs)
            self._remove_when_quiet(box)

        def release(pid: int) -> None:
            set_limits(pid, late, self._stage.user)

        job = RunningCommand(
            self._selector,
            child,
            message.payload,
            launcher=self._launcher,
            memory_kills=box.group.memory_kills,
            timeout=timeout,
            output_limit=limit,
            release=release,
            done=done,
        )
        self._jobs[request] = job
        if timeout < float("inf"):
            self._timed[request] = job
        box.jobs.add(job)

    def _mount(self, message: wire.Message) -> None:
        self._boxes[message.record["box"]].mount()
        self._answer(message.record["request"], {})

    def _kill(self, message: wire.Message) -> None:
        if message.record["target"] in self._jobs:
            self._jobs[message.record["target"]].kill()

    def _close(self, message: wire.Message) -> None:
        box = self._boxes.pop(message.record["box"])
        box.closing = message.record["request"]
        for job in box.jobs:
            job.kill()
        self._remove_when_quiet(box)

    def _remove_when_quiet(self, box: Box) -> None:
        """Answers who closes a sandbox when nothing runs in it any more."""
        if box.closing is not None and not box.jobs:
            box.remove()
            self._answer(box.closing, {})


def _children() -> set[int]:
    """Processes whose parent this process is, zombies included."""
    text = Path(f"/proc/self/task/{os.getpid()}/children")
    if text.exists():
        return set(map(int, text.read_text().split()))
    own, found = os.getpid(), set()  # a kernel without that file
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if parent_of(int(name)) == own:
                found.add(int(name))
    return found


def run(words: Sequence[str]) -> None:
    """The whole life of a spawner.

    Args:
        words: descriptor of a socket to the program that it serves; an empty folder, which it deletes at its end; what
            isolates, of ``LAUNCHERS``; path of that program, relative to the next where that is given; a folder that
            others may not be able to reach, or empty; ``groups`` to use control groups, ``limits`` not to.
    """
    descriptor, folder, kind, program, wheel, mode = words
    with contextlib.suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    start_warden(folder)
    os.umask(0o022)  # others read what it writes for them
    try:
        adopt_orphans()
        stage = SandboxStage(Path(folder))
        program = str(stage.visible(wheel) / program) if wheel else program
        spawner = SandboxSpawner(connection, stage, program, launcher=LAUNCHERS[kind](), groups=mode == "groups")
    except OSError as error:
        connection.sendall(wire.encode(wire.Message({"request": 0, "failure": str(error)})))
        return
    connection.sendall(wire.encode(wire.Message({"request": 0})))
    spawner.run()
    stage.leave()
    with contextlib.suppress(OSError):
        os.rmdir(folder)
