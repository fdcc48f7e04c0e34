"""The environment of tasks in a git repository: the agent works on a base commit, and its patch is the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
import contextlib
import functools
from importlib import metadata
import io
import json
from pathlib import Path
import tarfile
import threading
from typing import Any

from k2jax.agents.environments import repository_program, repository_tests
from k2jax.agents.environments.files import isolated_python
from k2jax.agents.environments.git_history import LARGEST_PACK, checked_id, packed_history
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.sandbox import HostPaths, Limits, Sandbox, SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.types import MEBI, WORK, ExecResult
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate

TREE = "/work/repo"
"""The agent's work tree."""
FOLDER = "repositories"
"""Key of a task's metadata: the folder below which its data set has looked for its repository."""
PACKAGES = "/work/packages"
"""Where the agent's sandbox has pytest, if the task has no image."""
_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_LEXERS = ("__init__", "_mapping", "diff", "python")  # the others are most of what there is
LARGEST_PATCH = MEBI
"""Bytes of a patch that counts."""
LIMITS = Limits(memory=2048 * MEBI, processes=128, disk=1024 * MEBI, files=100_000, open_files=1024)
"""Of the sandboxes in which an agent works on a repository, and of those in which its patch is tested."""
_TIMEOUT = 120.0
_packing = threading.Lock()
_PROGRAMS = {
    mode: Path(program.__file__).read_text(encoding="utf-8")
    for program, modes in (
        (repository_program, ("checkout", "diff", "compose")),
        (repository_tests, ("equip", "build", "run")),
    )
    for mode in modes
}


class RepositoryEnvironment(ToolEnvironment):
    """Tools in a sandbox with a work tree at ``TREE`` and its history up to the base commit, and nothing after it.

    The outcome is ``{"patch": text, "too_large": bool}``: all that differs from the base when the agent is done, new
    files too, whether or not it was committed.
    """

    folder = TREE
    needs_sandbox = True

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """A larger sandbox, in which pytest can be imported where the task has no image."""
        return repository_spec(task, read_only)

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Unpacks the base commit.

        Raises:
            UserError: its repository cannot be read.
            EnvironmentFailedError: git failed inside.
        """
        header = {"mode": "checkout", "tree": TREE}
        await run_program(sandbox, task, header, repositories=self.services.repositories)
        if not task.image:
            header = {"mode": "equip", "tree": TREE, "folder": PACKAGES}
            await run_program(sandbox, task, header, payload=await asyncio.to_thread(packed_pytest))

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """The agent's patch; empty where it cannot be had, because the agent has left no work tree."""
        try:
            header = {"mode": "diff", "tree": TREE}
            result = await run_program(sandbox, task, header, LARGEST_PATCH, repositories=self.services.repositories)
        except EnvironmentFailedError as error:
            return {"patch": "", "too_large": False, "error": str(error)}
        patch = "" if result.truncated else result.stdout.decode()
        return {"patch": patch, "too_large": result.truncated}


def repository_spec(task: Task, read_only: HostPaths = ()) -> SandboxSpec:
    """A sandbox for a task's repository: its image, or the host's Python."""
    if task.image:
        return SandboxSpec(image=task.image, read_only=read_only, limits=LIMITS, workdir=WORK)
    paths = dict.fromkeys((*read_only, *host_python().read_only))
    return SandboxSpec(read_only=tuple(paths), limits=LIMITS, env={"PYTHONPATH": PACKAGES})


def packed_pytest() -> bytes:
    """A tar archive of the host's pytest and what it imports, for sandboxes without an image.

    The first call of a process takes half a second, also where many episodes begin with one: call it in a thread.

    Raises:
        UserError: it is not installed.
    """
    with _packing:
        return _packed_pytest()


@functools.cache
def _packed_pytest() -> bytes:
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
                is_needed = file.suffix in (".py", ".pyc") or file.name == "METADATA"
                if is_needed and ".." not in file.parts and not unused:
                    archive.add(file.locate(), str(file))
    return packed.getvalue()


async def run_program(
    sandbox: Sandbox,
    task: Task,
    header: Mapping[str, Any],
    output_limit: int = MEBI,
    payload: bytes | None = None,
    *,
    repositories: str | None = None,
) -> ExecResult:
    """Runs ``repository_program`` or ``repository_tests`` inside a sandbox.

    Args:
        sandbox: where.
        task: with a repository.
        header: what to do, see the programs; the base commit is added, and folders of packages that the task names.
        output_limit: bytes of output that are kept.
        payload: what follows the header; the pack of the task's repository unless it is given.
        repositories: see ``Services``.

    Raises:
        EnvironmentFailedError: the program failed, or the history could not be packed in time.
        SandboxError: the sandbox failed.
        UserError: the repository or its base commit is refused.
    """
    task_header = {"base": checked_id(str(task.metadata["base"])), "pythonpath": task.metadata.get("pythonpath", [])}
    header = {**header, **task_header, "private": sandbox.capabilities.file_system == "private"}
    if payload is not None:
        stdin = await asyncio.to_thread(lambda: _line(header) + payload)
        return await _run_with(sandbox, task, header, output_limit, stdin)
    folder = _chosen(task, repositories)
    pack = await packed_history(str(task.metadata["repository"]), header["base"], folder)
    async with _on_their_way.take(pack.size):
        stdin = await asyncio.to_thread(pack.after, _line({**header, "shallow": pack.shallow}))
        return await _run_with(sandbox, task, header, output_limit, stdin)


def _chosen(task: Task, repositories: str | None) -> str:
    """The folder below which a task's repository must be."""
    if repositories is None:
        repositories = str(task.metadata.get(FOLDER, ""))
    if not repositories:
        raise UserError(
            f"the task {abbreviate(task.id)} names a repository of this machine, and no folder of repositories is "
            "chosen: choose one with --repositories=FOLDER"
        )
    return repositories


def _line(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header).encode() + b"\n"


async def _run_with(
    sandbox: Sandbox, task: Task, header: Mapping[str, Any], output_limit: int, stdin: bytes | bytearray
) -> ExecResult:
    result = await sandbox.exec(
        [*isolated_python(task), "-c", _PROGRAMS[header["mode"]]],
        stdin=stdin,
        env={"PYTHONPATH": ""},
        timeout=header.get("timeout", _TIMEOUT),
        output_limit=output_limit,
    )
    if header["mode"] != "run" and result.code and not result.truncated:
        reason = "time" if result.timed_out else result.stderr[-300:].decode(errors="replace").strip()
        raise EnvironmentFailedError(f"{header['mode']} of the task {task.id!r} failed: {reason}")
    return result


class _Room:
    """Bytes of histories that are in memory at a time, over all event loops of this process."""

    def __init__(self, most: int):
        self._free, self._lock = most, threading.Lock()

    @contextlib.asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Waits until there is room for so many bytes, which are free again after the block."""
        while not self._taken(size):
            await asyncio.sleep(0.05)  # a lock that several loops can wait for is none of asyncio's
        try:
            yield
        finally:
            with self._lock:
                self._free += size

    def _taken(self, size: int) -> bool:
        with self._lock:
            fits = size <= self._free
            self._free -= size if fits else 0
            return fits


_on_their_way = _Room(LARGEST_PACK)
