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
    *("--disable-userns", "--hostname", "sandbox"),
    *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
)


def root_arguments(stage: SandboxStage, box: Path, view: SandboxView) -> list[str]:
    """Arguments for what is visible inside: the same for every command of a sandbox.

    Args:
        stage: where the host's part lies.
        box: the sandbox's own files.
        view: see ``SandboxView``.
    """
    arguments = [*_ISOLATION, "--uid", str(view.user), "--gid", str(view.user)]
    if view.written:  # for files whose modes close them to their own user
        arguments += ["--cap-add", "CAP_DAC_OVERRIDE"]
    closed = ["/proc", "/dev"]
    # A process may write to the memory of another of its user in /proc, the first one's too, which tells exit codes.
    if view.image:
        arguments += ["--bind", str(box / ROOT), "/"]
    else:
        for source, inside, is_link in host_entries(stage):
            arguments += ["--symlink" if is_link else "--ro-bind", source, inside]
        for inside, source in view.shown.items():
            arguments += ["--ro-bind", str(source), inside]
        closed.append("/")
    arguments += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", str(box / TERMINALS), "/dev/pts"]
    for name, inside in own_folders(view).items():
        arguments += ["--bind", str(box / name), inside]
    return [*arguments, *(word for place in closed for word in ("--remount-ro", place))]


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

    def invoke(self, root: list[str], record: Mapping[str, Any], late: Mapping[int, int]) -> Invocation:
        """A command that waits where limits must be set from outside."""
        numbers = {"--seccomp": self._FILTER, "--json-status-fd": self._STATUS}
        if late:
            numbers["--block-fd"] = self._BLOCK
        first = ["--as-pid-1"] if record.get("first") else []
        text = command_arguments([*root, *first], record["cwd"], record["env"], numbers)
        argv = ["bwrap", "--args", str(self._ARGUMENTS), "--", *record["argv"]]
        files = {self._FILTER: self._filter, self._ARGUMENTS: text}
        return Invocation(list(map(os.fsencode, argv)), files, self._STATUS, self._BLOCK if late else None)

    def told(self, status: bytes) -> dict[str, Any]:
        """All that bubblewrap has told so far, in one record."""
        return json_records(status)
