"""The environment of tasks in a git repository: the agent works on a base commit, and its patch is the outcome."""

from __future__ import annotations

import base64
from collections.abc import Mapping
import functools
from importlib import metadata
import io
import json
from pathlib import Path
import subprocess
import tarfile
from typing import Any

from k2jax.env.errors import EnvironmentFailedError
from k2jax.env.task import Task
from k2jax.env.tasks import repository_program
from k2jax.env.tool_environment import ToolEnvironment
from k2jax.errors import UserError, abbreviate
from k2jax.sandbox import HostPaths, Limits, Sandbox, SandboxSpec
from k2jax.sandbox.interpreter import host_python
from k2jax.sandbox.types import MEBI, ExecResult

TREE = "/work/repo"
"""The agent's work tree."""
PACKAGES = "/work/packages"
"""Where the agent's sandbox has pytest, if the task has no image."""
_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_LEXERS = ("__init__", "_mapping", "diff", "python")  # the others are most of what there is
LARGEST_PATCH = MEBI
"""Bytes of a patch that counts."""
LIMITS = Limits(memory=2048 * MEBI, processes=128, disk=1024 * MEBI, files=100_000, open_files=1024)
"""Of the sandboxes in which an agent works on a repository, and of those in which its patch is tested."""
_TIMEOUT = 120.0
_PROGRAM = Path(repository_program.__file__).read_text(encoding="utf-8")


class RepositoryEnvironment(ToolEnvironment):
    """Tools in a sandbox with a work tree at ``TREE`` and its history up to the base commit, and nothing after it.

    The outcome is ``{"patch": text, "too_large": bool}``: all that differs from the base when the agent is done, new
    files too, whether or not it was committed.
    """

    folder = TREE

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """A larger sandbox, in which pytest can be imported where the task has no image."""
        return repository_spec(task, read_only)

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Unpacks the base commit.

        Raises:
            UserError: the task has no tool that needs a sandbox, or its repository cannot be read.
            EnvironmentFailedError: git failed inside.
        """
        if sandbox is None:
            raise UserError(f"the task {task.id!r} needs a tool with a sandbox, such as shell")
        packages = "" if task.image else base64.b64encode(packed_pytest()).decode()
        header = {"mode": "checkout", "tree": TREE, "packages": packages, "folder": PACKAGES}
        await run_program(sandbox, task, header)

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """The agent's patch; empty where it cannot be had, because the agent has left no work tree."""
        try:
            result = await run_program(sandbox, task, {"mode": "diff", "tree": TREE}, LARGEST_PATCH)
        except EnvironmentFailedError as error:
            return {"patch": "", "too_large": False, "error": str(error)}
        patch = "" if result.truncated else result.stdout.decode(errors="surrogateescape")
        return {"patch": patch.encode("utf-8", "replace").decode(), "too_large": result.truncated}


def repository_spec(task: Task, read_only: HostPaths = ()) -> SandboxSpec:
    """A sandbox for a task's repository: its image, or the host's Python."""
    if task.image:
        return SandboxSpec(image=task.image, read_only=read_only, limits=LIMITS)
    paths = dict.fromkeys((*read_only, *host_python().read_only))
    return SandboxSpec(read_only=tuple(paths), limits=LIMITS, env={"PYTHONPATH": PACKAGES})


@functools.cache
def packed_pytest() -> bytes:
    """A tar archive of the host's pytest and what it imports, for sandboxes without an image.

    Raises:
        UserError: it is not installed.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in _PYTEST:
            try:
                files = metadata.files(name) or ()
            except metadata.PackageNotFoundError:
                raise UserError("tasks in repositories without an image need pytest here: pip install pytest") from None
            for file in files:
                module = file.name.partition(".")[0]
                unused = file.parts[:2] == ("pygments", "lexers") and module not in _LEXERS
                if file.suffix in (".py", ".pyc") and ".." not in file.parts and not unused:
                    archive.add(file.locate(), str(file))
    return packed.getvalue()


@functools.lru_cache(maxsize=16)
def packed_history(repository: str, base: str) -> bytes:
    """A git pack of the commits up to a base, and of nothing else.

    Raises:
        UserError: there is no such repository or commit, or no git.
    """
    command = ["git", "-C", repository, "pack-objects", "--revs", "--stdout", "-q", "--no-reuse-delta"]
    try:
        return subprocess.run(command, input=f"{base}\n".encode(), capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise UserError("tasks in repositories need git: apt-get install git") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"cannot read the commit {base[:40]} of {repository}: {abbreviate(reason)}") from None


async def run_program(
    sandbox: Sandbox, task: Task, header: Mapping[str, Any], output_limit: int = MEBI, payload: bytes | None = None
) -> ExecResult:
    """Runs ``repository_program`` inside a sandbox.

    Args:
        sandbox: where.
        task: with a repository.
        header: what to do, see the program; the base commit is added.
        output_limit: bytes of output that are kept.
        payload: what follows the header; the pack of the task's repository unless it is given.

    Raises:
        EnvironmentFailedError: the program failed.
        SandboxError: the sandbox failed.
    """
    base = str(task.metadata["base"])
    if payload is None:
        payload = packed_history(str(task.metadata["repository"]), base)
    python = "python3" if task.image else host_python().executable
    result = await sandbox.exec(
        [python, "-I", "-S", "-c", _PROGRAM],
        stdin=json.dumps({**header, "base": base}).encode() + b"\n" + payload,
        env={"PYTHONPATH": ""},
        timeout=header.get("timeout", _TIMEOUT),
        output_limit=output_limit,
    )
    if header["mode"] != "run" and result.code and not result.truncated:
        reason = "time" if result.timed_out else result.stderr[-300:].decode(errors="replace").strip()
        raise EnvironmentFailedError(f"{header['mode']} of the task {task.id!r} failed: {reason}")
    return result
