"""Whether an agent of the host can start on an image, which may have another C library, or none of its programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import glob
import os
import shutil
from typing import NamedTuple

from k2jax.agents.sandbox import Sandbox
from k2jax.agents.sandbox.interpreter import loaded
from k2jax.errors import UserError, abbreviate

_BOOT = """
import os, runpy, site, sys
site.addsitedir(sys.argv[1])
sys.argv = sys.argv[2:]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""What a virtual environment does for a script or a module, without variables that the agent's own commands inherit."""
_STARTING = 60.0
"""Time in which an interpreter must say its version [s]."""
_ENV = "/usr/bin/env"
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")  # some of them have no option for a version
_MOST_HEAD = 512
_MOST_REASON = 300


class AgentCommand(NamedTuple):
    """A command on an image.

    Attributes:
        starter: what the kernel starts: the program, or the interpreter of a script.
        arguments: what follows.
    """

    starter: list[str]
    arguments: list[str]


async def check_start(starter: Sequence[str], sandbox: Sandbox, env: Mapping[str, str], what: str) -> None:
    """Starts what runs an agent's program, its interpreter where it is a script.

    Args:
        starter: of an ``AgentCommand``.
        sandbox: on the image.
        env: the agent's variables.
        what: how messages name the agent and the image.

    Raises:
        UserError: it does not start.
        SandboxError: the sandbox failed.
    """
    probe = ["-c", ":"] if os.path.basename(starter[-1]) in _SHELLS else ["--version"]
    command = [*starter, *probe]
    result = await sandbox.exec(command, env=env, timeout=_STARTING)
    if result.code:
        said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        reason = "it takes too long" if result.timed_out else said[-1][:_MOST_REASON] if said else f"code {result.code}"
        raise UserError(f"{what} does not start: {abbreviate(' '.join(command))} says {reason!a}")


def command_on_image(argv: Sequence[str], folders: Sequence[str]) -> AgentCommand:
    """An agent's command as it starts on an image, whose programs of the same names may be others or missing.

    Args:
        argv: the agent's command.
        folders: where its own programs are, ``venv/bin`` among them; a program that is in none of them is the image's.

    Raises:
        UserError: see ``loaded``.
    """
    program = _found(argv[0], folders)
    if program is None:
        return AgentCommand([argv[0]], list(argv[1:]))
    interpreter = _interpreter(program, folders)
    starter = interpreter or [program]
    arguments = [program, *argv[1:]] if interpreter else list(argv[1:])
    place, name = os.path.split(starter[0])
    if place not in folders or not name.startswith("python"):
        return AgentCommand(starter, arguments)
    packages = glob.glob(os.path.join(os.path.dirname(place), "lib/python3*/site-packages"))
    return AgentCommand(loaded(os.path.realpath(starter[0])), ["-I", "-c", _BOOT, *packages[:1], *arguments])


def _found(program: str, folders: Sequence[str]) -> str | None:
    return shutil.which(program, path=os.pathsep.join(folders)) if folders else None


def _interpreter(program: str, folders: Sequence[str]) -> list[str]:
    """The words of the first line of a script, an own program in the place of the name of one; none for a binary."""
    with open(os.path.realpath(program), "rb") as file:
        head = file.read(_MOST_HEAD).partition(b"\n")[0]
    words = head[2:].decode(errors="replace").split() if head.startswith(b"#!") else []
    named = words[2:] if words[1:2] == ["-S"] else words[1:]
    if words[:1] == [_ENV] and named and (own := _found(named[0], folders)):
        return [own, *named[1:]]
    return words
