"""The arguments of bubblewrap: what a command sees, and what it has lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import os
from pathlib import Path
import stat
from typing import Any

from k2jax.agents.sandbox import seccomp
from k2jax.agents.sandbox.launcher import Invocation, json_records
from k2jax.agents.sandbox.mount_namespace import NOBODY, TERMINALS, SandboxStage

_NOT_FROM_IMAGE = {"dev", "proc", "run", "sys", "tmp", "work"}
"""What an image has at the places of a sandbox's own folders, which is not shown, be it a folder or a link."""
HOST_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders of the host's programs beside ``/usr``, mostly links into it."""
_ISOLATION = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
    *("--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
    *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
)


def root_arguments(stage: SandboxStage, box: Path, image: str, read_only: Mapping[str, str]) -> list[str]:
    """Arguments for what is visible inside: the same for every command of a sandbox.

    Args:
        stage: where the host's part lies.
        box: the sandbox's own files.
        image: folder of an unpacked root file system; empty for the host's /usr.
        read_only: paths of the host by the paths inside.
    """
    arguments = list(_ISOLATION)
    for source, inside, is_link in root_entries(stage, image):
        arguments += ["--symlink" if is_link else "--ro-bind", source, inside]
    for inside, source in read_only.items():
        arguments += ["--ro-bind", source, inside]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", str(box / TERMINALS), "/dev/pts"]
    for name, inside in (("shm", "/dev/shm"), ("tmp", "/tmp"), ("work", "/work")):
        arguments += ["--bind", str(box / name), inside]
    # A process may write to the memory of another of its user in /proc, the first one's too, which tells exit codes.
    return [*arguments, "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]


def root_entries(stage: SandboxStage, image: str) -> Iterator[tuple[str, str, bool]]:
    """What a sandbox shows at its top of an image, or of the host's programs where that is empty.

    Yields:
        A path of the host or the target of a link, the path inside, and whether it is a link.
    """
    if image:
        root = stage.visible(image, alone=True)
        for name, target in image_entries(image):
            yield target or str(root / name), f"/{name}", bool(target)
        return
    yield "/usr", "/usr", False
    for folder in HOST_FOLDERS:
        if os.path.islink(folder):
            yield os.readlink(folder), folder, True
        elif os.path.isdir(folder):
            yield folder, folder, False
    yield str(stage.path / "etc"), "/etc", False


def image_entries(image: str) -> Iterator[tuple[str, str]]:
    """What an image shows at the top of a sandbox: names, and for links their targets, which are looked for inside.

    Raises:
        OSError: it cannot be read.
        ValueError: an entry is neither a folder, a regular file nor a link.
    """
    for name in sorted(set(os.listdir(image)) - _NOT_FROM_IMAGE):
        path = os.path.join(image, name)
        mode = os.lstat(path).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise ValueError(f"{name!a} in the image is neither a folder, a file nor a link")
        yield name, os.readlink(path) if stat.S_ISLNK(mode) else ""


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

    def root(self, stage: SandboxStage, box: Path, record: Mapping[str, Any]) -> list[str]:
        """Arguments for what is visible."""
        read_only = {inside: str(stage.visible(source)) for inside, source in record["read_only"].items()}
        return root_arguments(stage, box, record["image"], read_only)

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
