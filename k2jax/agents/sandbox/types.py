"""The interface of every sandbox backend: run a command, read and write files, say what is isolated."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from k2jax.errors import InfrastructureError

if TYPE_CHECKING:
    from k2jax.agents.egress.egress_log import EgressLog

MEBI = 1 << 20
WORK = "/work"
"""A folder that every sandbox has."""
LONGEST_WORD = 32 * 4096 - 1
"""Bytes of one argument, or of a variable with its name, that the kernel gives to a program."""
LONGEST_COMMAND = 2 * MEBI - (1 << 16)
"""Bytes of all of them: a quarter of a stack of 8 MiB, less what the isolating program adds."""
MOST_WORDS = 8000
"""Words of a command, three for each variable; bubblewrap takes 9,000 with its own."""
_BYTES_OF_A_WORD = 1 + 8  # the null character behind it, and the pointer to it


class SandboxError(InfrastructureError):
    """The sandbox itself failed: it could not be started, or it is gone. What ran inside it is not to blame."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What everything inside a sandbox may use together.

    Attributes:
        memory: bytes of memory.
        processes: processes and threads.
        disk: bytes of files that it writes.
        files: number of files (inodes) that it makes.
        open_files: descriptors of one process.
    """

    memory: int = 512 * MEBI
    processes: int = 64
    disk: int = 64 * MEBI
    files: int = 4096
    open_files: int = 256


class MountedPath(NamedTuple):
    """A file or folder of the host that a sandbox shows at another place.

    Attributes:
        source: its path on the host.
        inside: its path in the sandbox.
    """

    source: str
    inside: str


HostPaths = tuple[str | MountedPath, ...]
"""Absolute paths of the host that a sandbox shows, read-only: at the same place unless they say another."""


@dataclasses.dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made of.

    Attributes:
        image: name of the root file system, one of those that the backend may show; empty for the host's programs,
            read-only, without its data.
        read_only: see HostPaths.
        limits: see Limits.
        env: environment variables of every command.
        user: as whom commands run on an image, a name of its own or a number; empty for the user that the image says.
            Whoever it is, all files of the image are its own, and it has no rights beyond them.
        workdir: folder of commands that are given none; empty for the image's, or ``/work``.
        hosts: other machines that it may reach, those of them that the backend may reach, each ``HOST`` or
            ``HOST:PORT``; by default none. See k2jax.agents.egress.
    """

    image: str = ""
    read_only: HostPaths = ()
    limits: Limits = Limits()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    _: dataclasses.KW_ONLY
    user: str = ""
    workdir: str = ""
    hosts: tuple[str, ...] = ()


class Capabilities(NamedTuple):
    """What a backend guarantees on this machine.

    Attributes:
        network: ``none``, ``host``, or ``gateway``: some addresses of this project's own, see ``PodOptions.gateway``.
        memory: ``cgroup``, ``rlimit`` (of each process, Python only) or ``none``.
        processes: ``cgroup``, ``rlimit`` or ``none``.
        file_system: ``private`` (the host's is out of reach) or ``host``.
        snapshot: whether ``snapshot`` and ``fork`` work.
        residents: whether a program can stay between commands, see ``NamespaceSandbox.start``.
    """

    network: str
    memory: str
    processes: str
    file_system: str
    snapshot: bool
    residents: bool = False


@dataclasses.dataclass(frozen=True)
class ExecResult:
    """How a command ended.

    Attributes:
        code: exit code; 128 + number for a signal.
        stdout: at most ``output_limit`` bytes.
        stderr: at most ``output_limit`` bytes.
        seconds: wall time from its start.
        timed_out: it was killed at its time limit.
        out_of_memory: it was killed for memory.
        truncated: output beyond the limit was dropped.
    """

    code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    _: dataclasses.KW_ONLY
    timed_out: bool = False
    out_of_memory: bool = False
    truncated: bool = False


class Command(NamedTuple):
    """A command as a backend runs it; see ``Sandbox.exec``, ``env`` with the variables of the spec."""

    argv: list[str]
    stdin: bytes
    cwd: str
    env: dict[str, str]
    timeout: float
    output_limit: int


class Sandbox(abc.ABC):
    """One sandbox; ``async with`` closes it, and with it everything that runs inside.

    Args:
        capabilities: those of its backend.
        env: variables of every command.
        workdir: folder of commands that are given none.

    Attributes:
        longest_command: bytes of all words and variables of a command.
        egress: what it has asked of other machines; None where it may reach none.
    """

    longest_command = LONGEST_COMMAND
    egress: EgressLog | None = None

    def __init__(self, capabilities: Capabilities, env: Mapping[str, str], workdir: str = WORK):
        self.capabilities, self._env, self.workdir = capabilities, dict(env), workdir

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of every command."""
        return self._env

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        output_limit: int = MEBI,
    ) -> ExecResult:
        """Runs a command to its end; no process of it survives. One that cannot be started has code 127.

        Args:
            argv: program and arguments.
            stdin: what it reads.
            cwd: its folder, inside; empty for the sandbox's.
            env: variables beside those of the spec.
            timeout: wall time, from its start [s].
            output_limit: bytes that are kept of each of its outputs.

        Raises:
            SandboxError: the sandbox failed; a command that fails or times out is a result.
        """
        self._check_open()
        command = Command(list(argv), stdin, cwd or self.workdir, self._env | dict(env or {}), timeout, output_limit)
        if (problem := self._problem(command)) is not None:
            return ExecResult(127, b"", problem, 0.0)
        return await self._run(command)

    async def read(self, path: str, limit: int = MEBI) -> bytes:
        """The first ``limit`` bytes of a regular file inside; links are not followed.

        Raises:
            SandboxError: it is no regular file.
        """
        return await self._on_files("read_file", path, limit)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file inside in the place of what is there; its folder is made."""
        await self._on_files("write_file", path, data)

    async def list(self, path: str, limit: int = 1000) -> list[str]:
        """Names in a folder inside, sorted; at most ``limit``."""
        return await self._on_files("list_folder", path, limit)

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends everything that runs inside and deletes its files; further calls do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abc.abstractmethod
    def _check_open(self) -> None:
        """Raises SandboxError where the sandbox is closed."""

    @abc.abstractmethod
    async def _run(self, command: Command) -> ExecResult:
        """Runs a command that has no problem."""

    @abc.abstractmethod
    async def _on_files(self, function: str, path: str, argument: Any) -> Any:
        """What a function of ``files`` returns or raises for a path inside and its last argument."""

    def _problem(self, command: Command) -> bytes | None:
        """Why the kernel would take no such command; None where it would."""
        if not command.argv:
            return b"there is no command"
        if any(not name or "=" in name for name in command.env):
            return b"a variable has no name"
        if len(command.argv) + 3 * len(command.env) > MOST_WORDS:
            words = f"{len(command.argv):,} words and {len(command.env):,} variables"
            return f"Argument list too long: {words}, and a command takes at most {MOST_WORDS:,}".encode()
        total = 0
        for word in command_words(command):
            if "\0" in word:
                return b"a word of the command holds a null character"
            try:
                length = len(os.fsencode(word))
            except UnicodeEncodeError:
                return b"a word of the command holds a character that UTF-8 does not"
            if length > LONGEST_WORD:
                return _too_long("a word of the command or a variable has", length, LONGEST_WORD)
            total += length + _BYTES_OF_A_WORD
        if total > self.longest_command:
            return _too_long("its words and variables have", total, self.longest_command)
        return None


def command_words(command: Command) -> list[str]:
    """All texts of a command that the kernel is given."""
    return [*command.argv, command.cwd, *(f"{name}={value}" for name, value in command.env.items())]


def _too_long(what: str, length: int, most: int) -> bytes:
    """The kernel's own words, with the numbers that it does not say."""
    return f"Argument list too long: {what} {length:,} bytes, and a program takes at most {most:,}".encode()


class SandboxBackend(Protocol):
    """Makes sandboxes of one kind. No backend falls back to a weaker one."""

    capabilities: Capabilities

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """A new sandbox.

        Raises:
            SandboxError: it cannot be started.
            UserError: this machine lacks what the backend needs; says what to install.
        """
        ...
