"""The arguments of bubblewrap: what a command sees, and what it has lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
from pathlib import Path

from k2jax.sandbox.stage import NOBODY, SandboxStage

_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
"""Files of the host that programs in /usr need; they hold no names and no keys."""

_NOT_FROM_IMAGE = {"dev", "etc", "proc", "run", "sys", "tmp", "work"}
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
    arguments = [*_ISOLATION, "--dir", "/etc"]
    arguments += _image(stage, image) if image else _host(stage)
    for inside, source in read_only.items():
        arguments += ["--ro-bind", source, inside]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for name, inside in (("shm", "/dev/shm"), ("tmp", "/tmp"), ("work", "/work")):
        arguments += ["--bind", str(box / name), inside]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _host(stage: SandboxStage) -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for folder in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for file in sorted((stage.path / "etc").iterdir()):
        arguments += ["--ro-bind", str(file), f"/etc/{file.name}"]
    for file in _ETC:
        arguments += ["--ro-bind-try", file, file]
    return arguments


def _image(stage: SandboxStage, image: str) -> list[str]:
    root, arguments = stage.visible(image), []
    for entry in sorted(Path(image).iterdir()):
        if entry.is_symlink():
            arguments += ["--symlink", os.readlink(entry), f"/{entry.name}"]
        elif entry.name not in _NOT_FROM_IMAGE:
            arguments += ["--ro-bind", str(root / entry.name), f"/{entry.name}"]
    if (Path(image) / "etc").is_dir():
        arguments += ["--ro-bind", str(root / "etc"), "/etc"]
    return arguments


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
