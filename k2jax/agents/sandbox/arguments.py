"""The arguments of bubblewrap: what a command sees, and what it has lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import os
from pathlib import Path
from typing import Any

from k2jax.agents.sandbox import seccomp
from k2jax.agents.sandbox.launcher import Invocation, SandboxView, json_records
from k2jax.agents.sandbox.mount_namespace import TERMINALS, SandboxStage
from k2jax.agents.sandbox.overlay import OWN_PLACES, ROOT, UPPER

HOST_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders of the host's programs beside ``/usr``, mostly links into it."""
_ISOLATION = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
    *("--hostname", "sandbox", "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
)
_SERVER_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP", "CAP_SYS_RESOURCE")
"""What a fork server needs, over its own namespaces."""
SERVER_FOLDER = "/dev/k2jax"
"""Where a fork server finds its Python before it takes it away: no program of the sandbox can change anything there."""


def root_arguments(
    stage: SandboxStage, box: Path, view: SandboxView, server: Mapping[str, Path] | None = None
) -> list[str]:
    """Arguments for what is visible inside: the same for every command of a sandbox.

    Args:
        stage: where the host's part lies.
        box: the sandbox's own files.
        view: see ``SandboxView``.
        server: what a fork server is shown beside, by names in ``SERVER_FOLDER``; None for a command.
    """
    arguments = [*_ISOLATION, "--uid", str(view.user), "--gid", str(view.user)]
    if server is None:
        arguments.append("--disable-userns")
    else:
        arguments += [word for name in _SERVER_CAPABILITIES for word in ("--cap-add", name)]
    if view.written:  # for files whose modes close them to their own user
        arguments += ["--cap-add", "CAP_DAC_OVERRIDE"]
    closed = ["/proc", "/dev"] if server is None else ["/proc"]
    # A process may write to the memory of another of its user in /proc, the first one's too, which tells exit codes.
    if view.image:
        arguments += ["--bind", str(box / ROOT), "/"]
    else:
        for source, inside, is_link in host_entries(stage):
            arguments += ["--symlink" if is_link else "--ro-bind", source, inside]
        for inside, source in view.shown.items():
            arguments += ["--ro-bind", str(source), inside]
        closed.append("/")
    arguments += ["--proc", "/proc", *(("--dev", "/dev") if server is None else _devices())]
    arguments += ["--dev-bind", str(box / TERMINALS), "/dev/pts"]
    for name, inside in own_folders(view).items():
        arguments += ["--bind", str(box / name), inside]
    for name, source in (server or {}).items():
        arguments += ["--ro-bind", str(source), f"{SERVER_FOLDER}/{name}"]
    return [*arguments, *(word for place in closed for word in ("--remount-ro", place))]


def _devices() -> Iterator[str]:
    """What ``--dev`` makes; with that itself bubblewrap leaves nobody the right to mount."""
    yield from ("--tmpfs", "/dev", "--dir", "/dev/shm", "--dir", "/dev/pts", "--symlink", "pts/ptmx", "/dev/ptmx")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    links = {"fd": "/proc/self/fd", "core": "/proc/kcore"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        yield from ("--symlink", target, f"/dev/{name}")


def own_folders(view: SandboxView) -> dict[str, str]:
    """Where a sandbox's own folders are inside, by their names among its files."""
    return {name: inside for inside, name in OWN_PLACES.items()} | ({UPPER: f"/{UPPER}"} if view.written else {})


def host_entries(stage: SandboxStage) -> Iterator[tuple[str, str, bool]]:
    """What a sandbox without an image shows at its top: the host's programs.

    Yields:
        A path of the host or the target of a link, the path inside, and whether it is a link.
    """
    yield "/usr", "/usr", False
    for folder in HOST_FOLDERS:
        if os.path.islink(folder):
            yield os.readlink(folder), folder, True
        elif os.path.isdir(folder):
            yield folder, folder, False
    yield str(stage.path / "etc"), "/etc", False


def command_arguments(root: Sequence[str], cwd: str, env: Mapping[str, str], descriptors: Mapping[str, int]) -> bytes:
    """All arguments of one command before its own, as ``--args`` reads them: so they stand in no list of processes.

    Args:
        root: see ``root_arguments``.
        cwd: folder inside.
        env: its whole environment.
        descriptors: numbers by option, such as ``--seccomp``.
    """
    arguments = [*root, "--chdir", cwd]
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    for option, descriptor in descriptors.items():
        arguments += [option, str(descriptor)]
    return b"".join(os.fsencode(argument) + b"\0" for argument in arguments)


class BubblewrapLauncher:
    """Calls bubblewrap, with all arguments but the command's own in a file; see ``Launcher``."""

    complaints = (b"bwrap: execvp ", b"bwrap: Can't chdir to ")
    _FILTER, _STATUS, _ARGUMENTS, _BLOCK = 10, 11, 12, 13

    def __init__(self):
        self._filter = seccomp.program()

    def root(self, stage: SandboxStage, box: Path, view: SandboxView) -> list[str]:
        """Arguments for what is view."""
        return root_arguments(stage, box, view)

    def server_root(self, stage: SandboxStage, box: Path, view: SandboxView, shown: Mapping[str, Path]) -> list[str]:
        """Arguments for what a fork server sees; see ``root_arguments``."""
        return root_arguments(stage, box, view, shown)

    def invoke(self, root: list[str], record: Mapping[str, Any], late: Mapping[int, int]) -> Invocation:
        """A command that waits where limits must be set from outside."""
        numbers = {"--json-status-fd": self._STATUS} | ({} if record.get("unfiltered") else {"--seccomp": self._FILTER})
        if late:
            numbers["--block-fd"] = self._BLOCK
        first = ["--as-pid-1"] if record.get("first") else []
        text = command_arguments([*root, *first], record["cwd"], record["env"], numbers)
        argv = ["bwrap", "--args", str(self._ARGUMENTS), "--", *record["argv"]]
        files = {number: self._filter for option, number in numbers.items() if option == "--seccomp"}
        files[self._ARGUMENTS] = text
        return Invocation(list(map(os.fsencode, argv)), files, self._STATUS, self._BLOCK if late else None)

    def told(self, status: bytes) -> dict[str, Any]:
        """All that bubblewrap has told so far, in one record."""
        return json_records(status)
