"""The interface of every sandbox backend: run a command, read and write files, say what is isolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple, Protocol

from k2jax.errors import InfrastructureError

MEBI = 1 << 20


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
    """

    image: str = ""
    read_only: HostPaths = ()
    limits: Limits = Limits()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Capabilities(NamedTuple):
    """What a backend guarantees on this machine.

    Attributes:
        network: ``none`` or ``host``.
        memory: ``cgroup``, ``rlimit`` (of each process, Python only) or ``none``.
        processes: ``cgroup``, ``rlimit`` or ``none``.
        file_system: ``private`` (the host's is out of reach) or ``host``.
        snapshot: whether ``snapshot`` and ``fork`` work.
    """

    network: str
    memory: str
    processes: str
    file_system: str
    snapshot: bool


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


class Sandbox(Protocol):
    """One sandbox; ``async with`` closes it, and with it everything that runs inside."""

    capabilities: Capabilities

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        output_limit: int = MEBI,
    ) -> ExecResult:
        """Runs a command to its end; no process of it survives.

        Args:
            argv: program and arguments.
            stdin: what it reads.
            cwd: its folder, inside.
            env: variables beside those of the spec.
            timeout: wall time, from its start [s].
            output_limit: bytes that are kept of each of its outputs.

        Raises:
            SandboxError: the sandbox failed; a command that fails or times out is a result.
        """
        ...

    async def read(self, path: str, limit: int = MEBI) -> bytes:
        """The first ``limit`` bytes of a regular file inside.

        Raises:
            SandboxError: it is no regular file.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file inside; its folder is made."""
        ...

    async def list(self, path: str, limit: int = 1000) -> list[str]:
        """Names in a folder inside, sorted; at most ``limit``."""
        ...

    async def close(self) -> None:
        """Ends everything that runs inside and deletes its files; further calls do nothing."""
        ...

    async def __aenter__(self) -> Sandbox: ...

    async def __aexit__(self, *error: object) -> None: ...


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
