"""The configuration of nsjail: what a command sees, and what it has lost.

It is the text form of nsjail's ``config.proto``, read from a file in memory. nsjail's child is the first process of its
namespace, which no signal from inside can end, so a shell is the first and waits for the command. It also changes into
the folder, so that a folder that does not exist is the command's mistake and not nsjail's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import os
from pathlib import Path
import platform
import re
import resource
from typing import Any

from k2jax.agents.sandbox import seccomp
from k2jax.agents.sandbox.arguments import host_entries, own_folders
from k2jax.agents.sandbox.launcher import Invocation, SandboxView, json_records
from k2jax.agents.sandbox.mount_namespace import NOBODY, TERMINALS, SandboxStage
from k2jax.agents.sandbox.overlay import ROOT

FIRST_PROCESS = (
    'exec 3>&2 2>/dev/null; cd -- "$1" 2>&3 || exit 127; shift; unset OLDPWD; (exec "$@") 2>&3 3>&-; exit $?'
)
"""The shell keeps quiet about how the command ended; what the command says goes where it belongs."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_KEPT = ("as", "cpu", "fsize", "nofile")
"""Limits for which nsjail has values of its own; they stay as they are unless they are given."""
_CHILD = re.compile(rb"Added pid=(\d+) ")
_EXECUTING = b"] Executing '/bin/sh' for"


class NsjailLauncher:
    """Calls nsjail with everything in a file but the command; see ``Launcher``."""

    complaints = ()
    _CONFIG, _STATUS = 10, 11

    def __init__(self):
        self._filter = filter_text()

    def root(self, stage: SandboxStage, box: Path, view: SandboxView) -> tuple[str, list[str]]:
        """Configuration and options that are the same for every command of a sandbox."""
        stage.hide_mount_points()
        own = own_folders(view)
        outside = NOBODY if stage.user is not None else 0  # the spawner's user namespace has one user
        lines = [
            "mode: ONCE time_limit: 0 nice_level: 0",
            'hostname: "sandbox" cwd: "/"',
            "clone_newnet: true clone_newuser: true clone_newns: true clone_newpid: true",
            "clone_newipc: true clone_newuts: true clone_newcgroup: true",
            f'uidmap {{ inside_id: "{view.user}" outside_id: "{outside}" count: 1 }}',
            f'gidmap {{ inside_id: "{view.user}" outside_id: "{outside}" count: 1 }}',
            "mount_proc: true",
            *(['cap: "CAP_DAC_OVERRIDE"'] if view.written else []),
            *_root(stage, box, view),
            *(_bind(f"/dev/{name}", f"/dev/{name}", "rw: true") for name in _DEVICES),
            *(_link(target, f"/dev/{name}") for name, target in (_LINKS | {"ptmx": "pts/ptmx"}).items()),
            _bind(str(box / TERMINALS), "/dev/pts", "rw: true"),
            *(_bind(str(box / name), inside, "rw: true nosuid: true nodev: true") for name, inside in own.items()),
            f"seccomp_string: {_quoted(self._filter)}",
        ]
        return "\n".join(lines), ["--rw"] if view.image else []

    def server_root(self, stage: SandboxStage, box: Path, view: SandboxView, shown: Mapping[str, Path]) -> None:
        """None: a fork server needs rights that nsjail leaves to no program."""

    def invoke(self, root: tuple[str, list[str]], record: Mapping[str, Any], late: Mapping[int, int]) -> Invocation:
        """A command behind its shell."""
        limits = {"core": 0}
        if resource.RLIMIT_AS in late:
            limits["as"] = late[resource.RLIMIT_AS] >> 20
        if resource.RLIMIT_NPROC in late:
            limits["nproc"] = late[resource.RLIMIT_NPROC]
        lines = [root[0], *(f"rlimit_{name}: {value} rlimit_{name}_type: VALUE" for name, value in limits.items())]
        lines += [f"rlimit_{name}_type: SOFT" for name in _KEPT if name not in limits]
        lines += [f"envar: {_quoted(f'{name}={value}')}" for name, value in record["env"].items()]
        jail = ["nsjail", "--config", f"/proc/self/fd/{self._CONFIG}", "--log_fd", str(self._STATUS), "--verbose"]
        shell = ["/bin/sh", "-c", FIRST_PROCESS, "sh", record["cwd"]]
        if record.get("first"):
            shell = ["/bin/sh", "-c", 'cd -- "$1" || exit 127; shift; exec "$@"', "sh", record["cwd"]]
        argv = [os.fsencode(word) for word in (*jail, *root[1], "--", *shell, *record["argv"])]
        return Invocation(argv, {self._CONFIG: "\n".join(lines).encode()}, self._STATUS)

    def told(self, status: bytes) -> dict[str, Any]:
        """What can be read from nsjail's log before the command's own words appear in it."""
        if status.startswith(b'{"error"'):
            return json_records(status)
        told: dict[str, Any] = {}
        if child := _CHILD.search(status):
            told["child-pid"] = int(child[1])
        if _EXECUTING in status:
            told["started"] = True
        elif errors := [line for line in status.split(b"\n") if line.startswith((b"[E]", b"[F]"))]:
            told["error"] = errors[0].decode(errors="replace")
        return told


def filter_text() -> str:
    """The filter of ``seccomp.program`` in the language of Kafel, which nsjail compiles."""
    numbers = seccomp.syscalls(platform.machine())
    clone, ioctl, socket, clone3 = (numbers.pop(name) for name in ("clone", "ioctl", "socket", "clone3"))
    refused = [_call(number) for number in numbers.values()]
    refused.append(f"{_call(clone)}(flags) {{ (flags & {seccomp.NEW_NAMESPACES}) != 0 }}")
    requests = " || ".join(f"request == {number}" for number in seccomp.TERMINAL_REQUESTS)
    refused.append(f"{_call(ioctl)}(fd, request) {{ {requests} }}")
    if platform.machine() == "x86_64":  # a table of its own behind one bit, which no program here needs
        refused += [_call(seccomp.X32 | number) for number in range(_X32_CALLS)]
    families = " && ".join(f"family != {number}" for number in seccomp.SOCKET_FAMILIES)
    return (
        f"POLICY sandbox {{ ERRNO(1) {{ {', '.join(refused)} }}, ERRNO(38) {{ {_call(clone3)} }}, "
        f"ERRNO(97) {{ {_call(socket)}(family) {{ {families} }} }} }} USE sandbox DEFAULT ALLOW"
    )


_X32_CALLS = 600
"""More than the numbers that x32 knows."""


def _call(number: int) -> str:
    return f"SYSCALL[{number}]"


def _root(stage: SandboxStage, box: Path, view: SandboxView) -> Iterator[str]:
    if view.image:
        yield _bind(str(box / ROOT), "/", "rw: true nosuid: true nodev: true")
        yield 'mount { dst: "/dev" fstype: "tmpfs" options: "mode=0755,size=64k" }'
        return
    for source, inside, is_link in host_entries(stage):
        yield _link(source, inside) if is_link else _bind(source, inside)
    for inside, source in view.shown.items():
        yield _bind(str(source), inside)


def _bind(source: str, inside: str, options: str = "") -> str:
    return f"mount {{ src: {_quoted(source)} dst: {_quoted(inside)} is_bind: true {options} }}"


def _link(target: str, inside: str) -> str:
    return f"mount {{ src: {_quoted(target)} dst: {_quoted(inside)} is_symlink: true }}"


def _quoted(text: str) -> str:
    """A string of a text proto, byte by byte."""
    plain = set(range(32, 127)) - set(b'"\\')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in os.fsencode(text)) + '"'
