"""Tools of a server of the Model Context Protocol: over HTTP, or one that is started in the episode's sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
import contextlib
import json
import shlex
from typing import Any

from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.sandbox import ExecResult
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.toolsets.types import ToolError, ToolResult, Toolset, Workplace, declared
from k2jax.errors import InfrastructureError, UserError, abbreviate
from k2jax.text.media_reading import IMAGE_PART

_INSTALL = "the toolset 'mcp' needs the package mcp: pip install 'k2jax[mcp]'"
_MOST_PAGES = 100
"""Pages of a server's list of tools that are asked for."""
_LARGEST_TOOLS = 1 << 20
"""Bytes of all declarations of a server's tools."""
_LAST_WORDS = 300
"""Bytes of a server's error output that a message repeats."""
_ANSWERED: set[str] = set()
"""Names of the servers that have begun a session in this process."""


class MCPTools(Toolset):
    """The tools that a server offers when the episode begins; the session lasts as long as the episode.

    A result that the server marks as an error, a call that it refuses as wrong and one that it does not answer in time
    are messages to the model. A server that has never answered in this process is a mistake of whoever named it; one
    that has, and is gone or ends, is a failure of the infrastructure.

    Args:
        url: of its endpoint over HTTP, such as ``http://127.0.0.1:8000/mcp``.
        command: program and arguments of a server that is started in the sandbox and speaks over its input and
            output; ``python`` as the program is this program's own.
        timeout: longest time to start and for one answer [s].
        read_only: host paths that the sandbox shows for ``command``.
        ordered: whether the calls of one answer wait for one another, as those of a server in the sandbox, whose files
            others change, always do; for a server whose session has a state, such as a browser.

    Raises:
        UserError: not exactly one of ``url`` and ``command`` is there, or the package ``mcp`` is not installed.
    """

    def __init__(
        self,
        url: str = "",
        command: str = "",
        timeout: float = 30.0,
        read_only: tuple[str, ...] = (),
        ordered: bool = False,
    ):
        if bool(url) == bool(command):
            raise UserError("the toolset 'mcp' needs either url=... or command=...")
        try:
            import mcp  # noqa: F401 (slow to import, and used by episodes alone)
        except ImportError:
            raise UserError(_INSTALL) from None
        self.needs_sandbox = bool(command)
        self.concurrent = bool(url) and not ordered
        self.read_only = (*host_python().read_only, *read_only) if command else ()
        self.tools: list[dict[str, Any]] = []
        self._url, self._command, self._timeout = url, shlex.split(command), timeout
        self._session: asyncio.Task | None = None
        self._leave = asyncio.Event()
        self._client: Any = None
        self._ended: list[ExecResult] = []

    async def open(self, workplace: Workplace) -> None:
        """Connects, and asks for the tools.

        Raises:
            EnvironmentFailedError: the server cannot be reached or started, and once could.
            UserError: it never could, or programs cannot stay in sandboxes of this kind.
        """
        if self._command and not workplace.sandbox.capabilities.residents:
            raise UserError(
                "the toolset 'mcp' needs a sandbox in which a program stays; use the backend bubblewrap or nsjail"
            )
        ready = asyncio.get_running_loop().create_future()
        # The client's scopes must be left by the task that entered them, so that a task holds the session.
        self._session = asyncio.create_task(self._hold(workplace, ready))
        try:
            await asyncio.wait_for(asyncio.shield(ready), self._timeout)
        except TimeoutError:
            self._session.cancel()
            await asyncio.wait([self._session], timeout=1)  # it may have last words
            raise self._unusable(f"it has given no answer within {self._timeout:g} s") from None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The text of a result, or its parts where one is an image; parts of other kinds are named in brackets.

        Raises:
            ToolError: the server says that the call is wrong, or says nothing in its time.
            EnvironmentFailedError: the server has failed.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT

        if self._session is None or self._session.done():
            raise EnvironmentFailedError(f"{self._name} has ended{self._last_words()}")
        try:
            async with asyncio.timeout(self._timeout):
                result = await self._client.call_tool(name, dict(arguments), self._timeout)
        except TimeoutError:
            raise self._no_answer(name) from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise self._no_answer(name) from None
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                raise ToolError(error.message) from None
            await asyncio.wait([self._session], timeout=1)  # one that died has last words
            raise EnvironmentFailedError(f"{self._name} failed: {error.message}{self._last_words()}") from error
        text = "\n".join(_text(part) for part in result.content)
        if result.is_error:
            raise ToolError(text)
        return [_part(part) for part in result.content] if any(map(_is_image, result.content)) else text

    async def close(self) -> None:
        """Ends the session, and with it a server in the sandbox."""
        if self._session is None:
            return
        self._leave.set()
        done, _ = await asyncio.wait([self._session], timeout=self._timeout)
        if not done:
            self._session.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it was told to whoever waited for it
            await self._session
        self._session = None

    @property
    def _name(self) -> str:
        return f"the MCP server {abbreviate(self._url or shlex.join(self._command))}"

    async def _hold(self, workplace: Workplace, ready: asyncio.Future) -> None:
        """Keeps the session from the first answer until the toolset is closed."""
        from mcp.client.client import Client

        from k2jax.agents.toolsets.mcp_transport import sandbox_transport

        try:
            argv = self._argv() if self._command else []
            server = sandbox_transport(workplace.sandbox, argv, self._ended.append) if argv else self._url
            async with Client(server, read_timeout_seconds=self._timeout) as client:
                self._client, self.tools = client, await _declarations(client)
                _ANSWERED.add(self._name)
                if not ready.done():
                    ready.set_result(None)
                await self._leave.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(self._unusable(_reason(error), isinstance(_first(error), InfrastructureError)))

    def _no_answer(self, tool: str) -> ToolError:
        return ToolError(f"{self._name} has given no answer to {tool} within {self._timeout:g} s")

    def _unusable(self, reason: str, is_machines_fault: bool = False) -> Exception:
        """The error of a session that does not begin: of whoever named the server, unless it has once begun one."""
        words = f"{self._name} cannot be used: {reason}{self._last_words()}"
        if is_machines_fault or self._name in _ANSWERED:
            return EnvironmentFailedError(words)
        return UserError(f"{words}; start it, or correct its {'url' if self._url else 'command'}")

    def _last_words(self) -> str:
        """What a server in the sandbox said of its end; empty where it said nothing, or still runs."""
        said = self._ended[-1].stderr[-_LAST_WORDS:].decode(errors="replace").strip() if self._ended else ""
        return f"; it said {said!a}" if said else ""

    def _argv(self) -> list[str]:
        program, *arguments = self._command
        return [host_python().executable if program == "python" else program, *arguments]


async def _declarations(client: Any) -> list[dict[str, Any]]:
    """All tools of a server in OpenAI's format."""
    tools, cursor, size = [], None, 0
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [declared(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        size += sum(len(json.dumps(tool)) for tool in tools[len(tools) - len(page.tools) :])
        if size > _LARGEST_TOOLS:
            raise EnvironmentFailedError(f"it declares tools of more than {_LARGEST_TOOLS:,} bytes")
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _is_image(part: Any) -> bool:
    return part.type == "image" and part.mime_type.startswith("image/")


def _part(part: Any) -> dict[str, Any]:
    if _is_image(part):
        return {"type": IMAGE_PART, IMAGE_PART: {"url": f"data:{part.mime_type};base64,{part.data}"}}
    return {"type": "text", "text": f"{_text(part)}\n"}


def _text(part: Any) -> str:
    return part.text if part.type == "text" else f"[{part.type}]"


def _first(error: BaseException) -> BaseException:
    """The first of the errors that a group of tasks has collected."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    """The first of an error's parts on one line."""
    error = _first(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
