"""Whether an agent of the host can start on an image, which may have another C library, or none of its programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import glob
import os
import shutil

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
_MOST_HEAD = 512
_MOST_REASON = 300


async def check_start(words: Sequence[str], sandbox: Sandbox, env: Mapping[str, str], what: str) -> None:
    """Starts what runs an agent's program, its interpreter where it is a script.

    Args:
        words: see ``interpreter_of``.
        sandbox: on the image.
        env: the agent's variables.
        what: how messages name the agent and the image.

    Raises:
        UserError: it does not start.
        SandboxError: the sandbox failed.
    """
    command = [*words, "--version"]
    result = await sandbox.exec(command, env=env, timeout=_STARTING)
    if result.code:
        said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        reason = "it takes too long" if result.timed_out else said[-1][:_MOST_REASON] if said else f"code {result.code}"
        raise UserError(f"{what} does not start: {abbreviate(' '.join(command))} says {reason!a}")


def command_on_image(argv: Sequence[str], folders: Sequence[str]) -> list[str]:
    """An agent's command as it starts on an image, whose Python need not be that of the agent's environment.

    Args:
        argv: the agent's command.
        folders: where its own programs are, ``venv/bin`` among them.

    Raises:
        UserError: see ``loaded``.
    """
    words = list(argv)
    program = _found(words[0], folders)
    interpreter = (_shebang(program) if program else None) or [program or ""]
    place, name = os.path.split(interpreter[0])
    if place not in folders or not name.startswith("python"):
        return words
    words = words[1:] if program == interpreter[0] else [program, *words[1:]]
    packages = glob.glob(os.path.join(os.path.dirname(place), "lib/python3*/site-packages"))
    return [*loaded(os.path.realpath(interpreter[0])), "-I", "-c", _BOOT, *packages[:1], *words]


def interpreter_of(argv: Sequence[str], folders: Sequence[str]) -> list[str]:
    """What the kernel starts for a command: the words after ``#!`` of a script of the agent, else its first word.

    Args:
        argv: what ``command_on_image`` returned.
        folders: of the agent, which its sandbox shows; a program that is in none of them is the image's.
    """
    program = _found(argv[0], folders)
    if "--library-path" in argv[:2]:  # Python behind its loader
        return list(argv[:4])
    return (_shebang(program) if program else None) or [argv[0]]


def _found(program: str, folders: Sequence[str]) -> str | None:
    return shutil.which(program, path=os.pathsep.join(folders)) if folders else None


def _shebang(program: str) -> list[str] | None:
    """The words of the first line of a script; None for another program."""
    with open(os.path.realpath(program), "rb") as file:
        head = file.read(_MOST_HEAD).partition(b"\n")[0]
    return head[2:].decode(errors="replace").split() if head.startswith(b"#!") else None
