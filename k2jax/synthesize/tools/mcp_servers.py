"""Tools of servers of the Model Context Protocol that an ``mcp.json`` names, as a source of the repository.

What a server says of its tools is nobody's word: names, texts and schemas have limits, and what is beyond them leaves.
A server is started as its file says, as any client of the protocol does; none of its tools is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import json
import os
from pathlib import Path
import re
import shlex
import signal
import socket
from typing import Any, NamedTuple

from k2jax.agents.sandbox.types import ExecResult
from k2jax.agents.task import Task
from k2jax.agents.toolsets.mcp_tools import MCPTools
from k2jax.agents.toolsets.types import Workplace
from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work

CATEGORY = "servers of MCP"
MOST_SERVERS, MOST_TOOLS, LONGEST_TEXT = 256, 1000, 4000
MOST_SCHEMA_BYTES, MOST_SCHEMA_DEPTH, MOST_SCHEMA_VALUES = 1 << 15, 16, 1000
_SECONDS = 60.0
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
_KEYS = {"command", "args", "env", "url"}


def read_servers(path: Path) -> list[Record]:
    """The servers of an ``mcp.json`` with ``mcpServers``, in the order of their names.

    Raises:
        UserError: it cannot be read; the message names the server.
    """
    try:
        values = parse_bounded_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the file of servers {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the file of servers {path} is no JSON: {abbreviate(str(error))}") from None
    servers = values.get("mcpServers") if isinstance(values, dict) else None
    if not isinstance(servers, dict) or not 0 < len(servers) <= MOST_SERVERS:
        raise UserError(f"{path} needs mcpServers with 1 to {MOST_SERVERS} servers by name")
    for name, server in servers.items():
        if mistake := _mistake(name, server):
            raise UserError(f"the server {abbreviate(name)} of {path}: {mistake}")
    return [
        {"server": {key: server[key] for key in _KEYS & set(server)}, "name": name, "category": CATEGORY}
        for name, server in sorted(servers.items())
    ]


def _mistake(name: str, server: Any) -> str:
    if not _NAME.fullmatch(name):
        return "its name has characters other than letters, digits, '.', '_' and '-'"
    if not isinstance(server, dict) or bool(server.get("url")) == bool(server.get("command")):
        return "it needs either url or command"
    args, env = server.get("args", []), server.get("env", {})
    texts = [server.get("url", ""), server.get("command", "")]
    texts += [*args, *env.values()] if isinstance(args, list) and isinstance(env, dict) else [None]
    return "" if all(isinstance(text, str) for text in texts) else "its args are no list of texts, or its env no object"


def listed() -> Work:
    """The stage that asks each server for its tools; other records go on as they are."""

    async def work(record: Record, asker: Asker) -> Made:
        if "server" not in record:
            return Made([record])
        server = record["server"]
        command = shlex.join([server["command"], *server.get("args", [])]) if "command" in server else ""
        toolset = MCPTools(url=server.get("url", ""), command=command, timeout=_SECONDS)
        task = Task(id=record["name"], domain="mcp", instruction=(), verifier="")
        try:
            await toolset.open(Workplace(task, 0, _HostPrograms(server.get("env", {}))))
            declared = [tool["function"] for tool in toolset.tools]
        finally:
            await toolset.close()
        tools, dropped = bounded_tools(declared)
        if not tools:
            return Made([], [*dropped, ("server without tools", record)])
        return Made([{**record, "tools": tools}], [(reason, {**record, "tool": tool}) for reason, tool in dropped])

    return work


def bounded_tools(
    declared: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """Tools as ``{"name", "description", "schema"}``, and ``(reason, tool)`` of those beyond the limits.

    Args:
        declared: functions in OpenAI's format, as a server declares them.
    """
    tools: list[dict[str, Any]] = []
    dropped: list[tuple[str, dict[str, Any]]] = []
    for function in declared:
        name = str(function["name"])
        reason = _beyond(name, function["parameters"])
        if not reason and (len(tools) == MOST_TOOLS or name in {tool["name"] for tool in tools}):
            reason = "too many tools, or two of a name"
        if reason:
            dropped.append((reason, {"name": name[:128]}))
        else:
            text = str(function.get("description", ""))[:LONGEST_TEXT]
            tools.append({"name": name, "description": text, "schema": _plain(function["parameters"])})
    return tools, dropped


def _beyond(name: str, schema: Any) -> str:
    """Which limit a tool is beyond; empty for none."""
    if not _NAME.fullmatch(name):
        return "no name of a tool"
    values, waiting = 0, [(schema, 0)]
    while waiting:  # not by recursion: it is as deep as a server likes
        value, depth = waiting.pop()
        values += 1
        if depth > MOST_SCHEMA_DEPTH or values > MOST_SCHEMA_VALUES:
            return "schema too deep or too large"
        if isinstance(value, Mapping | list):
            parts = value.values() if isinstance(value, Mapping) else value
            waiting += [(part, depth + 1) for part in parts]
    if len(json.dumps(schema)) > MOST_SCHEMA_BYTES:
        return "schema too deep or too large"
    return "" if _is_object_schema(schema) else "no schema of an object"


def _is_object_schema(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return False
    fields, required = schema.get("properties", {}), schema.get("required", [])
    is_named = isinstance(required, list) and all(isinstance(name, str) for name in required)
    return isinstance(fields, Mapping) and all(isinstance(field, Mapping) for field in fields.values()) and is_named


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with descriptions of a bounded length."""
    fields = {
        name: {**field, "description": str(field["description"])[:LONGEST_TEXT]}
        if "description" in field
        else dict(field)
        for name, field in schema.get("properties", {}).items()
    }
    return {**schema, "properties": fields}


class _Capabilities(NamedTuple):
    residents: bool = True


class _HostPrograms:
    """Starts a server on this machine, with the interface of a sandbox that ``MCPTools`` needs."""

    capabilities = _Capabilities()

    def __init__(self, environment: Mapping[str, str]):
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}  # and no keys of models
        self._environment = {**kept, **environment}

    async def start(self, argv: list[str]) -> _HostProgram:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=theirs,
                stdout=theirs,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise UserError(f"the program {abbreviate(argv[0])} does not start: {error.strerror}") from None
        finally:
            theirs.close()
        return _HostProgram(process, ours)


class _HostProgram:
    """A server that runs; its last words are bounded."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket):
        self._process, self._connection, self._said = process, connection, b""
        self._reading = asyncio.create_task(self._read())

    def take(self) -> socket.socket:
        return self._connection

    async def kill(self) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it has started, as npx does

    async def wait(self) -> ExecResult:
        await self._process.wait()
        await asyncio.wait([self._reading], timeout=1)
        return ExecResult(self._process.returncode or 0, b"", self._said, 0.0)

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(1 << 12):
            self._said = (self._said + part)[-(1 << 12) :]
