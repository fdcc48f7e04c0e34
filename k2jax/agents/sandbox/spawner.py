"""The spawner: a small process of one thread that starts and ends everything that runs in bubblewrap.

It exists because forking a program with a model in it is slow, because bubblewrap ends with the thread that started it,
and because the sandboxes' files need a mount namespace. It serves one program over a socket (see wire.py) and ends with
it: then the kernel ends its sandboxes and deletes their files. It imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import itertools
import os
import selectors
import signal
import socket
import time
from typing import Any

from k2jax.agents.sandbox import cgroup, wire
from k2jax.agents.sandbox.box import Box, box_key
from k2jax.agents.sandbox.child_process import Child, Plan, set_limits, start
from k2jax.agents.sandbox.fork_server import ForkedCommand, ForkServer, server_record
from k2jax.agents.sandbox.launcher import Launcher
from k2jax.agents.sandbox.mount_namespace import SandboxStage
from k2jax.agents.sandbox.running_command import RunningCommand, children

_KEPT_ERRORS = 1 << 14
"""Bytes of error output that are kept of a program that goes on."""
_ORPHANS_END = 0.02
"""How long an orphan that was killed is waited for before others are served, and how often the loop looks again [s]."""
_LONGEST_WAIT = 3600.0
"""How long the loop waits for anything at most: a time limit may be longer than what the kernel can wait for [s]."""
_MOST_SERVERS = 128
"""Fork servers at a time, each of some mebibytes."""
_MOST_KEPT = 32
"""Closed sandboxes that wait, empty, to be opened again."""
_SERVER_STARTS = 10.0
"""How long a fork server may take to be ready [s]."""
_SERVER_TRIES = 3
"""Fork servers that fail before a first one is ready, after which this machine is taken not to allow them."""
_PATIENCE = 2.0
"""How long a control group may take to become empty after its processes have ended [s]."""


class SandboxSpawner:
    """Answers requests until the program that makes them ends.

    Every request has a ``request``, its number, which its answer repeats; a ``failure`` in an answer is a message.
    The first command of a sandbox is a bubblewrap of its own, so that a sandbox that runs one alone costs no more; from
    the second on a fork server inside starts them, where control groups limit the sandbox. Closed sandboxes without an
    image whose fork server runs are emptied and kept for the next of the same kind.

    Kinds: ``open`` (limits, read_only, user; image, workdir, deferred) gives a sandbox's number and a descriptor of its
    files, and mounts its image, which with ``deferred`` waits for ``mount`` (box); ``exec`` (box, argv, cwd, env,
    timeout, output_limit, bare; the payload is stdin) gives a result whose payload is both outputs, and ``bare`` shows
    the host's programs and what was written to the image; ``start`` (box, argv, cwd, env, first) gives the descriptor
    of a socket to a program that goes on, and at its end a result whose payload is its error output; ``kill`` (target)
    ends either early and has no answer; ``close`` (box, reusable), where ``reusable`` says that nobody outside uses its
    files any more; ``servers`` gives the ``pids`` of fork servers and what isolates them.

    Args:
        connection: a Unix socket.
        stage: where files are.
        program: path of the isolating program.
        launcher: how it is called.
        groups: whether to use control groups.
        python: how a fork server starts: ``argv`` of its Python, and ``shown``, paths of the host by their names in its
            folder; None for no fork servers.
    """

    def __init__(
        self,
        connection: socket.socket,
        stage: SandboxStage,
        program: str,
        *,
        launcher: Launcher,
        groups: bool,
        python: Mapping[str, Any] | None = None,
    ):
        self._connection, self._stage = connection, stage
        self._program, self._launcher, self._mark = program, launcher, os.fsencode(stage.path.name)
        self._groups = cgroup.GroupPool(cgroup.hold(cgroup.find()) if groups else {}, f"{os.getpid()}-")
        stage.forget("/sys")
        self._selector = selectors.DefaultSelector()
        self._decoder = wire.Decoder()
        self._boxes: dict[int, Box] = {}
        self._jobs: dict[int, RunningCommand | ForkedCommand] = {}
        self._timed: dict[int, RunningCommand | ForkedCommand] = {}
        self._server_argv = python["argv"] if python else []
        self._shown = {name: stage.visible(source) for name, source in python["shown"].items()} if python else None
        self._count, self._own_numbers = 0, itertools.count(-1, -1)
        self._kept: list[Box] = []
        self._has_orphans = self._ended = False
        self._server_tries = float(_SERVER_TRIES)

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
        for box in (*self._boxes.values(), *self._kept):
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
        for pid in children() - known:
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
            self._try(message, getattr(self, f"_{message.record['kind']}"))

    def _try(self, message: wire.Message, serve: Callable[[wire.Message], None]) -> None:
        try:
            serve(message)
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
        number, key = message.record["request"], box_key(message.record)
        box = next((box for box in reversed(self._kept) if box.key == key), None)
        if box is not None:
            root = box.open_files()
            self._kept.remove(box)
            box.is_closed = False
        else:
            name, record = str(number), message.record
            box = Box(self._stage, self._launcher, self._groups, name, record, server=self._shown)
            root = box.files.root
        self._boxes[number] = box
        try:
            self._answer(number, {"box": number}, descriptors=(root,))
        finally:
            os.close(root)

    def _exec(self, message: wire.Message) -> None:
        box = self._boxes[message.record["box"]]
        box.commands += 1
        if message.record.get("bare") or not (server := self._server_of(box)):
            self._exec_alone(message)
        elif server.is_ready:
            self._fork(message)
        else:
            server.waiting.append(message)

    def _exec_alone(self, message: wire.Message) -> None:
        child, late = self._launch(message.record)
        self._watch(message, child, late, timeout=message.record["timeout"], limit=message.record["output_limit"])

    def _fork(self, message: wire.Message) -> None:
        box, request = self._boxes[message.record["box"]], message.record["request"]

        def done(result: dict[str, Any], outputs: bytes) -> None:
            del self._jobs[request]
            del self._timed[request]
            box.jobs.discard(command)
            self._answer(request, result, outputs)
            self._remove_when_quiet(box)

        command = ForkedCommand(self._selector, message, box.server, memory_kills=box.group.memory_kills, done=done)
        self._jobs[request] = self._timed[request] = command
        box.jobs.add(command)
        box.server.run(command)

    def _server_of(self, box: Box) -> ForkServer | None:
        """The fork server of a sandbox, which is started with its second command; None where it has none."""
        if box.server is None and box.commands > 1 and box.server_root is not None and self._shown is not None:
            if self._count >= _MOST_SERVERS:
                self._drop_one()
            if self._count < _MOST_SERVERS:
                self._start_server(box)
        return box.server if box.server is not None and not box.server.is_ending else None

    def _start_server(self, box: Box) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                box.make_room(1)
                child, _ = self._launch_in(box, box.server_root, server_record(self._server_argv), theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._count += 1
        number = next(self._own_numbers)

        def ready() -> None:
            job.deadline = self._server_tries = float("inf")
            del self._timed[number]
            waiting, server.waiting = server.waiting, []
            for message in waiting:
                self._try(message, self._fork)

        def done(result: dict[str, Any], outputs: bytes) -> None:
            del self._jobs[number]
            self._timed.pop(number, None)
            self._count -= 1
            box.server = None
            box.make_room(0)
            if len(job.pids) == 1:
                self._end_orphans()
            if not server.is_ready and not server.is_ending:  # for want of memory, or this machine does not allow it
                box.server_root, box.key = None, ""
                self._server_tries -= 1
                self._shown = self._shown if self._server_tries else None
            server.gone()
            if box in self._kept:
                self._kept.remove(box)
            for message in () if self._ended else server.waiting:
                self._try(message, self._exec_alone)
            self._remove_when_quiet(box)

        job = RunningCommand(
            self._selector,
            child,
            b"",
            launcher=self._launcher,
            memory_kills=box.group.memory_kills,
            timeout=_SERVER_STARTS,
            output_limit=_KEPT_ERRORS,
            release=lambda pid: None,
            done=done,
        )
        server = box.server = ForkServer(self._selector, ours, end=job.kill, ready=ready)
        self._jobs[number] = self._timed[number] = job

    def _start(self, message: wire.Message) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            child, late = self._launch(message.record, theirs.fileno())
            self._answer(message.record["request"], {"started": True}, descriptors=(ours.fileno(),))
        self._watch(message, child, late, timeout=float("inf"), limit=_KEPT_ERRORS)

    def _launch(self, record: dict[str, Any], connection: int | None = None) -> tuple[Child, dict[int, int]]:
        """Starts a command; also gives the limits that it waits for."""
        box = self._boxes[record["box"]]
        return self._launch_in(box, box.bare if record.get("bare") else box.root, record, connection)

    def _launch_in(
        self, box: Box, root: Any, record: dict[str, Any], connection: int | None
    ) -> tuple[Child, dict[int, int]]:
        late = box.limits_without_groups()
        invocation = self._launcher.invoke(root, record, late)
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
        target = message.record["target"]
        if target in self._jobs:
            self._jobs[target].kill()
        for server in (box.server for box in self._boxes.values() if box.server is not None):
            for waiting in [each for each in server.waiting if each.record["request"] == target]:
                server.waiting.remove(waiting)
                self._answer(target, {"failure": "the command was ended before it began"})

    def _close(self, message: wire.Message) -> None:
        box = self._boxes.pop(message.record["box"])
        box.is_closed, box.closing = True, message.record["request"]
        if not message.record["reusable"]:
            box.key = ""
        for job in list(box.jobs):
            job.kill()
        self._remove_when_quiet(box)

    def _remove_when_quiet(self, box: Box) -> None:
        """Removes or keeps a closed sandbox, and answers who closes it, when nothing runs in it any more."""
        if not box.is_closed or box.is_removed or box.jobs:
            return
        if box.closing is None or not self._keep(box):
            if box.server is not None:
                box.server.end()
                return
            box.remove()
        if box.closing is not None:
            self._answer(box.closing, {})
            box.closing = None

    def _keep(self, box: Box) -> bool:
        """Keeps a closed sandbox for the next one, empty, where that is possible; the oldest of many gives way."""
        if not box.wipe():
            return False
        self._kept.append(box)
        if len(self._kept) > _MOST_KEPT:
            self._remove_when_quiet(self._kept.pop(0))
        return True

    def _servers(self, message: wire.Message) -> None:
        pids = [pid for number, job in self._jobs.items() if number < 0 for pid in job.pids]
        self._answer(message.record["request"], {"pids": pids})

    def _drop_one(self) -> None:
        """Begins to end the fork server of a sandbox that waits to be used again, if there is one."""
        if box := next((box for box in self._kept if box.server is not None), None):
            self._kept.remove(box)
            box.server.end()
