"""Sandboxes of this machine's own namespaces: what the backends bubblewrap and nsjail share.

A sandbox is a tmpfs, control groups and what is visible, which the spawner holds (see spawner.py); every command is a
bubblewrap or an nsjail of its own, so that whatever it started ends with it, while /work, /tmp and /dev/shm stay.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
import contextlib
import functools
import json
import os
import platform
import threading
from typing import Any, ClassVar, Self
import weakref

from k2jax.agents.egress.allow_list import AllowList
from k2jax.agents.sandbox import cgroup, seccomp
from k2jax.agents.sandbox.arguments import SERVER_FOLDER
from k2jax.agents.sandbox.folder import FolderSandbox
from k2jax.agents.sandbox.forward import Egress
from k2jax.agents.sandbox.images import ImageSettings, check_places, hold_image, image_folder, image_settings
from k2jax.agents.sandbox.interpreter import moved_python
from k2jax.agents.sandbox.mount_namespace import NOBODY
from k2jax.agents.sandbox.mounts import mounts
from k2jax.agents.sandbox.overlay import OWN_PLACES, ROOT, UPPER
from k2jax.agents.sandbox.process import SandboxProcess, result_of
from k2jax.agents.sandbox.spawner_client import Answer, Link
from k2jax.agents.sandbox.types import MEBI, WORK, Capabilities, Command, ExecResult, SandboxError, SandboxSpec
from k2jax.agents.sandbox.user_threads import USER_THREADS
from k2jax.errors import UserError, abbreviate
from k2jax.files.process_tree import descendants

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/work", "LANG": "C.UTF-8"}
"""Variables of every command, where its image does not choose others."""
_OF_A_MOUNT = ("impure", "origin", "uuid")
"""Attributes that the kernel gives to files of an overlay for as long as that is mounted."""
_PACK = ("tar", "--create", "--sparse", "--file=-")
_UNPACK = ("tar", "--extract", "--preserve-permissions", "--file=-")
_ATTRIBUTES = ("--xattrs", "--xattrs-include=user.*", *(f"--xattrs-exclude=user.overlay.{n}" for n in _OF_A_MOUNT))
"""What says of a folder that nothing of the image shows in it."""
_PACKING = 120.0
"""Time limit of ``tar`` [s]."""
_ARCHIVE = 4096
"""Most bytes that an archive needs for a file beside what is in it."""
_NOTHING_SHOWN = {"read_only": {}, "image": "", "deferred": False}
_STARTS = 2
"""Spawners that are tried before the machine is to blame."""
_GRACE = 30.0
"""How long after a command's time limit the spawner may still take to answer [s]."""


class NamespaceBackend(abc.ABC):
    """Opens sandboxes of namespaces; its spawner starts with the first of them and ends with this object.

    Args:
        images: folder of the unpacked root file systems that specs may name; see ``image_folder``.
        groups: whether control groups are used where there are any.
        forks: whether sandboxes may have fork servers, which start commands from the second on, and be used again.
        hosts: other machines that specs may choose from; see ``AllowList.of_user``.

    Raises:
        UserError: it is not installed, or there is no filter of system calls for this machine.

    Attributes:
        capabilities: memory and processes are limited by control groups where this user can make them, else by limits
            of each process.
        kind: name of the program that isolates, as ``spawner_process.LAUNCHERS`` knows it.
    """

    kind: ClassVar[str]

    def __init__(self, *, images: str = "", groups: bool = True, forks: bool = True, hosts: Sequence[str] = ()):
        if not seccomp.supported():
            raise UserError(f"the {self.kind} backend knows x86_64 and aarch64 only, not {platform.machine()}")
        self._program, self._folder = self._find()
        self._images, self._hosts = images, AllowList.of_user(hosts)
        trees = cgroup.find() if groups else {}
        self._groups, self._forks = groups, forks
        self.capabilities = Capabilities(
            network="none",
            memory="cgroup" if "memory" in trees else "rlimit",
            processes="cgroup" if "pids" in trees else "rlimit",
            file_system="private",
            snapshot=True,
            residents=True,
        )
        self._link: Link | None = None
        self._lock = threading.Lock()

    @abc.abstractmethod
    def _find(self) -> tuple[str, str]:
        """Path of the program, and the folder that it is relative to or an empty one; UserError where it is missing."""

    @property
    def program(self) -> str:
        """Path of the program that isolates."""
        return os.path.join(self._folder, self._program)

    def close(self) -> None:
        """Ends the spawner and all sandboxes; the next ``open`` starts another."""
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    def running(self) -> set[int]:
        """Processes of commands in all sandboxes, zombies included, as the host counts them; they may be many."""
        if self._link is None:
            return set()
        _, servers = self._link.ask("servers")
        return set(descendants(self._link.process_id)) - set(servers.result(_GRACE).record["pids"])

    async def open(self, spec: SandboxSpec) -> NamespaceSandbox:
        """A new sandbox; see ``SandboxBackend.open``."""
        return await self._opened(spec)

    async def restore(self, spec: SandboxSpec, snapshot: bytes) -> NamespaceSandbox:
        """A new sandbox with the files of another one of the same spec.

        Args:
            spec: see ``open``.
            snapshot: what ``NamespaceSandbox.snapshot`` returned.

        Raises:
            SandboxError: the files cannot be copied.
        """
        sandbox = await self._opened(spec, deferred=True)
        try:
            await sandbox.unpack(snapshot)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _opened(self, spec: SandboxSpec, *, deferred: bool = False) -> NamespaceSandbox:
        image, settings = "", ImageSettings({}, NOBODY, spec.workdir or WORK)
        if spec.image:
            image = image_folder(spec.image, self._images)
            hold_image(image)
            settings = image_settings(image, spec.user, spec.workdir)
        elif spec.user:
            raise UserError(f"the user {abbreviate(spec.user)} needs an image that has it; leave it out")
        egress = await Egress.open(self._hosts, spec.hosts, on_image=bool(image)) if spec.hosts else None
        try:
            shown = mounts((*spec.read_only, *(egress.read_only if egress else ())))
            if image:
                check_places(shown, image)
            link = await asyncio.to_thread(self._connect)
            record = {"read_only": shown, "image": image, "deferred": deferred}
            return (await self._open(link, spec, record, settings)).reaching(egress)
        except BaseException:
            if egress is not None:
                await egress.close()
            raise

    def _connect(self) -> Link:
        """The running spawner, or a new one, tried out first."""
        with self._lock:
            if self._link is None or not self._link.alive or self._link.pid != os.getpid():
                self._link = self._started()
                weakref.finalize(self, self._link.close)
            return self._link

    def _started(self) -> Link:
        """A spawner that works; another is started in the place of one that does not, since it may have been killed."""
        for _ in range(_STARTS):
            try:
                link = Link(
                    self.kind, self._program, self._folder, self._groups, _server_python() if self._forks else "null"
                )
                asyncio.run(self._try_out(link))
                return link
            except SandboxError as error:
                reason = error
        raise UserError(
            f"{self.kind} cannot make sandboxes on this machine ({reason}); allow user namespaces: "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=10000"
        )

    async def _try_out(self, link: Link) -> None:
        async with await self._open(link, SandboxSpec(), _NOTHING_SHOWN, ImageSettings({}, NOBODY, WORK)) as sandbox:
            await sandbox.exec(["/bin/sh", "-c", ":"])

    async def _open(
        self, link: Link, spec: SandboxSpec, record: Mapping[str, Any], settings: ImageSettings
    ) -> NamespaceSandbox:
        limits = spec.limits
        number, future = link.ask(
            "open",
            limits={name: int(getattr(limits, name)) for name in limits.__dataclass_fields__},
            user=settings.user,
            workdir=settings.workdir,
            **record,
        )
        try:
            answer = await _answer(future, _GRACE)
        except BaseException:
            future.add_done_callback(functools.partial(_abandon, link, number))  # it may still be made, for nobody
            raise
        return NamespaceSandbox(link, answer, spec, self, settings)


def _server_python() -> str:
    """The Python of fork servers as JSON; null where none can be moved, and every command is started alone."""
    try:
        return json.dumps(moved_python(SERVER_FOLDER)._asdict())
    except UserError:
        return "null"


async def _answer(future: Future[Answer], patience: float) -> Answer:
    """Waits for the spawner, which goes on when the waiting ends early."""
    answered = asyncio.wrap_future(future)
    answered.add_done_callback(lambda each: each.cancelled() or each.exception())  # known, if nobody waits any more
    try:
        return await asyncio.wait_for(asyncio.shield(answered), patience)
    except TimeoutError:
        raise SandboxError("the spawner of sandboxes does not answer") from None


def _abandon(link: Link, number: int, made: Future[Answer]) -> None:
    """Ends the sandbox or the program of a request that nobody waits for any more."""
    if made.exception() is None:
        os.close(made.result().descriptor)
        with contextlib.suppress(SandboxError):
            if (box := made.result().record.get("box")) is not None:
                link.ask("close", box=box, reusable=False)
            else:
                link.ask("kill", target=number)


class NamespaceSandbox(FolderSandbox):
    """One sandbox, whose files in /work, /tmp and /dev/shm are within reach, and its image's; see ``Sandbox``."""

    threads = USER_THREADS

    def __init__(
        self, link: Link, opened: Answer, spec: SandboxSpec, backend: NamespaceBackend, settings: ImageSettings
    ):
        """Takes over a sandbox that the spawner has made, and the descriptor of its files."""
        env = ENVIRONMENT | settings.env | dict(spec.env)
        places = OWN_PLACES | ({"": ROOT} if spec.image else {})
        super().__init__(backend.capabilities, env, root=opened.descriptor, places=places, workdir=settings.workdir)
        self._link, self._box, self._spec, self._backend = link, opened.record["box"], spec, backend
        self._egress: Egress | None = None

    def reaching(self, egress: Egress | None) -> Self:
        """The sandbox, whose commands reach other machines by ``egress`` from now on; it is closed with the sandbox."""
        self._egress = egress
        if egress is not None:
            self.egress, self._env = egress.log, self._env | egress.env
        return self

    async def _run(self, command: Command) -> ExecResult:
        return await self._ran(self._reaching(command))

    def _reaching(self, command: Command) -> Command:
        return command if self._egress is None else command._replace(argv=self._egress.command(command.argv))

    async def _ran(self, command: Command, *, bare: bool = False) -> ExecResult:
        record = command._asdict()
        number, future = self._link.ask("exec", record.pop("stdin"), box=self._box, bare=bare, **record)
        try:
            answer = await _answer(future, max(command.timeout, 0.0) + _GRACE)
        except BaseException:
            with contextlib.suppress(SandboxError):
                self._link.ask("kill", target=number)
            raise
        size = answer.record["stdout"]
        return result_of(answer, answer.payload[:size], answer.payload[size:])

    async def start(
        self, argv: Sequence[str], *, cwd: str = "", env: Mapping[str, str] | None = None, first: bool = False
    ) -> SandboxProcess:
        """Starts a program that lives until it ends, is ended, or the sandbox is closed.

        Args:
            argv: program and arguments; its input and output are the two directions of one socket.
            cwd: its folder, inside; empty for the sandbox's.
            env: variables beside those of the spec.
            first: whether it is the first process of its namespace, which nothing inside can kill.

        Raises:
            SandboxError: the sandbox failed. A program that cannot be started is one that ends at once.
        """
        self._check_open()
        command = Command(list(argv), b"", cwd or self.workdir, self._env | dict(env or {}), 0.0, 0)
        if (problem := self._problem(command)) is not None:
            raise SandboxError(problem.decode())
        command = self._reaching(command)
        ended: Future[Answer] = Future()
        record = {"argv": command.argv, "cwd": command.cwd, "env": command.env, "first": first}
        number, future = self._link.ask("start", later=ended, box=self._box, **record)
        try:
            answer = await _answer(future, _GRACE)
        except BaseException:
            future.add_done_callback(functools.partial(_abandon, self._link, number))
            raise
        return SandboxProcess(self._link, number, answer.descriptor, ended)

    async def snapshot(self) -> bytes:
        """All files in /work, /tmp and /dev/shm and all that is changed in an image, for ``fork``.

        What runs is not part of it.

        Raises:
            SandboxError: they are more than the limit on disk allows.
        """
        limit = self._spec.limits.disk + _ARCHIVE * self._spec.limits.files
        folders = ["work", "tmp", "dev/shm", *([UPPER] if self._spec.image else [])]
        result = await self._packing([*_PACK, *self._attributes(), *folders], limit=limit)
        if result.code or result.truncated:
            raise SandboxError(f"no snapshot: tar ended with code {result.code}: {result.stderr[:200]!a}")
        return result.stdout

    async def unpack(self, snapshot: bytes) -> None:
        """Takes the files of a snapshot, once, in a sandbox on whose image nothing has run.

        Raises:
            SandboxError: the files cannot be copied.
        """
        result = await self._packing([*_UNPACK, *self._attributes()], snapshot)
        if result.code:
            raise SandboxError(f"no fork: tar ended with code {result.code}: {result.stderr[:200]!a}")
        _, future = self._link.ask("mount", box=self._box)
        await _answer(future, _GRACE)

    async def fork(self, snapshot: bytes | None = None) -> NamespaceSandbox:
        """A new sandbox of the same spec with these files.

        Args:
            snapshot: see ``snapshot``; None for the files as they are now.

        Raises:
            SandboxError: the files cannot be copied.
        """
        data = await self.snapshot() if snapshot is None else snapshot
        return await self._backend.restore(self._spec, data)

    def _attributes(self) -> tuple[str, ...]:
        return _ATTRIBUTES if self._spec.image else ()

    async def _packing(self, argv: list[str], stdin: bytes = b"", limit: int = 0) -> ExecResult:
        """Runs the host's ``tar`` on this sandbox's files."""
        self._check_open()
        return await self._ran(Command(argv, stdin, "/", ENVIRONMENT, _PACKING, max(limit, MEBI)), bare=True)

    async def _end(self) -> None:
        reusable = not self._unfinished and self._egress is None
        try:
            with contextlib.suppress(SandboxError):  # a spawner that has ended took everything with it
                _, future = self._link.ask("close", box=self._box, reusable=reusable)
                await _answer(future, _GRACE)
        finally:
            if self._egress is not None:
                await self._egress.close()
