"""Environments of tasks about files: some to begin with, and an archive or the texts of what the agent leaves."""

from __future__ import annotations

import base64
from collections.abc import Mapping
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

from k2jax.agents.environments import pack_program
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.sandbox import HostPaths, Limits, Sandbox, SandboxError, SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.types import WORK
from k2jax.agents.task import Task
from k2jax.errors import UserError

FILES = "files"
"""Key of a task's metadata: ``{path: {"text": ..., "mode": ...}}`` below ``/work``; modes are octal texts. What is no
text stands in Base64 under ``base64`` instead."""
OUTPUTS = "outputs"
"""Key of a task's metadata: paths below ``/work``, whose texts ``NamedFilesEnvironment`` keeps. ``FilesEnvironment``
packs them before others, and what is in them where they are folders."""
LARGEST = 5 << 20
"""Bytes of the archive, compressed: in Base64 it fits into a message of a remote environment."""
LARGEST_TEXT = 1 << 20
"""Bytes of a named file."""
LARGEST_TEXTS = 6 << 20
"""Bytes of the texts of named files as JSON: they fit into a message of a remote environment."""
_WRITING = 60.0  # wall time that writing the files may take, on a machine where many agents start [s]
_UNPACK = """
import base64, json, os, sys
for path, file in json.load(sys.stdin).items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as opened:
        opened.write(base64.b64decode(file["base64"]) if "base64" in file else file["text"].encode())
    os.chmod(path, int(file.get("mode", "644"), 8))
"""
_PACK = Path(pack_program.__file__).read_text(encoding="utf-8")
_PACKING = 60.0  # wall time that packing them may take [s]
_REPORT = 1 << 14  # bytes of what the program says beside the archive


class FilesEnvironment(ToolEnvironment):
    """Tools in a sandbox whose ``/work`` begins with the files of the task.

    The outcome is ``{"archive": text, "left_out": [text, ...]}``: the regular files, folders and links below ``/work``
    as a compressed tar archive in Base64, and which are not in it, with the reason. What the task names under
    ``OUTPUTS`` comes first, then the smallest files. It has no times, so that an episode that is repeated leaves the
    same bytes. Where nothing can be packed, ``reason`` says why.
    """

    needs_sandbox = True

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """With this program's own Python, where the task has no image."""
        shown = read_only if task.image else tuple(dict.fromkeys((*read_only, *host_python().read_only)))
        return SandboxSpec(image=task.image, read_only=shown, workdir=WORK)

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Writes the files; EnvironmentFailedError where they cannot be written."""
        files = json.dumps(task.metadata.get(FILES, {})).encode()
        result = await sandbox.exec([*isolated_python(task), "-c", _UNPACK], stdin=files, timeout=_WRITING)
        if result.code:
            reason = "time" if result.timed_out else result.stderr[-200:].decode(errors="replace").strip()
            raise EnvironmentFailedError(f"the files of the task {task.id!r} cannot be written: {reason}")

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """The archive; empty where the agent's files cannot be packed."""
        limits = task.limits.of(Limits())  # of the sandbox where it is unpacked, into a folder
        request = {"first": list(task.metadata.get(OUTPUTS, ())), "largest": LARGEST}
        request |= {"disk": limits.disk * 15 // 16, "files": limits.files - 2}
        result = await sandbox.exec(
            [*isolated_python(task), "-c", _PACK, json.dumps(request)],
            cwd="/",
            output_limit=LARGEST + _REPORT,
            timeout=_PACKING,
        )
        report, _, archive = result.stdout.partition(b"\n")
        if result.code or result.truncated:
            reason = "time" if result.timed_out else result.stderr[-200:].decode(errors="replace").strip()
            return {"archive": "", "left_out": [], "reason": reason or f"exit code {result.code}"}
        return {"archive": base64.b64encode(archive).decode(), "left_out": json.loads(report)}


class NamedFilesEnvironment(ToolEnvironment):
    """Tools in a sandbox whose ``/work`` begins with the files of the task, of which a few named ones are kept.

    It costs no process of its own: files are written and read from outside. The outcome is ``{"texts": {path: text}}``,
    of the regular files that the task names under ``OUTPUTS`` and that are there. Those of more than ``LARGEST_TEXT``,
    and those after ``LARGEST_TEXTS`` together, are not; then ``left_out`` names them with the reason.
    """

    needs_sandbox = True

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """Its folder is that of the files, whatever an image says."""
        return dataclasses.replace(super().spec(task, read_only), workdir=WORK)

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Writes the files.

        Raises:
            UserError: a file has a mode.
            SandboxError: they cannot be written.
        """
        for path, content in plain_files(task).items():
            await sandbox.write(f"/work/{path}", content)

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """The texts of the named files.

        Raises:
            SandboxError: the sandbox has failed.
        """
        texts, room, outputs, left_out = {}, LARGEST_TEXTS, task.metadata.get(OUTPUTS, ()), []
        for path in outputs:
            with contextlib.suppress(SandboxError):  # there is no regular file
                data = await sandbox.read(f"/work/{path}", LARGEST_TEXT + 1)
                text = data.decode(errors="replace")
                size = len(json.dumps(text, ensure_ascii=False).encode()) if len(text) < room else len(text) + 2
                if len(data) > LARGEST_TEXT or size > room:
                    left_out.append(f"{path}: {'too large' if len(data) > LARGEST_TEXT else pack_program.TOO_LARGE}")
                    continue
                texts[path], room = text, room - size
        if len(texts) < len(outputs):  # is it the agent who left none, or the sandbox that is gone?
            await sandbox.exec(["/bin/sh", "-c", ":"], cwd="/")
        return {"texts": texts} | ({"left_out": left_out} if left_out else {})


def plain_files(task: Task) -> dict[str, bytes]:
    """Contents of a task's files by path.

    Raises:
        UserError: one of them has a mode, which takes the environment ``files``.
    """
    files = task.metadata.get(FILES, {})
    if any("mode" in file for file in files.values()):
        raise UserError(f"a file of the task {task.id!r} has a mode; its environment must be 'files'")
    try:
        return {path: _content(file) for path, file in files.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"a file of the task {task.id!r} has neither text nor base64 of its bytes: {error}") from None


def _content(file: Mapping[str, str]) -> bytes:
    if "base64" in file:
        return base64.b64decode(file["base64"], validate=True)
    return file["text"].encode()


def isolated_python(task: Task) -> list[str]:
    """The Python of a task's sandboxes, which imports nothing from their folders unasked."""
    return ["python3" if task.image else host_python().executable, "-I", "-S"]
