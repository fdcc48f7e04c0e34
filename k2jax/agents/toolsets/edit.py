"""The tool ``edit``: views, creates and changes files of the episode's sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.agents.sandbox import Sandbox, SandboxError
from k2jax.agents.toolsets.types import ToolError, Toolset, Workplace, declared, in_folder, parameters_of

LARGEST = 1 << 20
"""Bytes of a file that can be viewed or changed."""
_COMMANDS = {"view": (), "create": ("text",), "replace": ("old", "new")}
_PROPERTIES = {
    "command": {"enum": list(_COMMANDS)},
    "path": {"type": "string", "description": "of the file; a relative one is below /work"},
    "text": {"type": "string", "description": "create: the whole file"},
    "old": {"type": "string", "description": "replace: a text that occurs exactly once in the file"},
    "new": {"type": "string", "description": "replace: what stands there afterwards"},
    "first": {"type": "integer", "minimum": 1, "description": "view: number of the first line"},
    "last": {"type": "integer", "minimum": 1, "description": "view: number of the last line"},
}


class EditTool(Toolset):
    """Views a file or a folder, creates a file, or replaces a text that occurs in it exactly once."""

    needs_sandbox = True

    def __init__(self):
        self._sandbox: Sandbox | None = None
        self.tools = [
            declared(
                "edit",
                "Views a file with numbered lines or a folder, creates a file, or replaces a text in a file.",
                parameters_of(_PROPERTIES, ["command", "path"]),
            )
        ]

    async def open(self, workplace: Workplace) -> None:
        """Takes the sandbox, whose folder the declaration then names."""
        self._sandbox = workplace.sandbox
        self.tools = in_folder(self.tools, workplace.sandbox.workdir)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Numbered lines or names for ``view``, else what was done.

        Raises:
            ToolError: an argument is missing, the path is no readable file, or ``old`` does not occur exactly once.
        """
        command, path = arguments["command"], arguments["path"]
        for needed in _COMMANDS[command]:
            if needed not in arguments:
                raise ToolError(f"the command {command} needs the argument {needed!r}")
        if command == "view":
            first, last = arguments.get("first", 1), arguments.get("last")  # JSON's 1.0 is an integer, too
            return await self._view(path, int(first), None if last is None else int(last))
        if command == "create":
            await self._write(path, arguments["text"])
            return f"{path} has {len(arguments['text'].splitlines()):,} lines"
        return await self._replace(path, arguments["old"], arguments["new"])

    async def _view(self, path: str, first: int, last: int | None) -> str:
        try:
            lines = (await self._read(path)).splitlines()
        except ToolError:
            try:
                return "\n".join(await self._sandbox.list(path))
            except SandboxError:
                await self._check_alive()
            raise
        last = len(lines) if last is None else last
        if lines and first > min(last, len(lines)):
            raise ToolError(f"{path} has {len(lines):,} lines; there are none from {first} to {last}")
        return "\n".join(f"{number}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))

    async def _replace(self, path: str, old: str, new: str) -> str:
        text = await self._read(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolError(f"the text to replace occurs {count} times in {path}; it must occur exactly once")
        await self._write(path, text.replace(old, new))
        line = text[: text.index(old)].count("\n") + 1
        return f"replaced in {path} at line {line}"

    async def _read(self, path: str) -> str:
        try:
            data = await self._sandbox.read(path, LARGEST + 1)
        except SandboxError as error:
            await self._check_alive()
            raise ToolError(f"{path} cannot be read: {error}") from None
        if len(data) > LARGEST:
            raise ToolError(f"{path} has more than {LARGEST:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text in UTF-8") from None

    async def _write(self, path: str, text: str) -> None:
        try:
            await self._sandbox.write(path, text.encode(errors="replace"))
        except SandboxError as error:
            await self._check_alive()
            raise ToolError(f"{path} cannot be written: {error}") from None

    async def _check_alive(self) -> None:
        """Raises SandboxError where the sandbox, and not what the agent has done to its files, was the reason."""
        await self._sandbox.exec(["/bin/sh", "-c", ":"], cwd="/")
